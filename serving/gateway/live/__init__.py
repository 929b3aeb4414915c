"""The gateway on its event loop: links, clients, and the core that connects them."""
