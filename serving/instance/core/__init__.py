"""What an instance decides: scheduler, blocks, speculation, handoffs, draining. Pure."""
