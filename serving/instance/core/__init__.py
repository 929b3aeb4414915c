"""Decisions of an instance: scheduler, blocks, speculation, handoffs, draining. Pure."""
