"""The gateway on its event loop: links, clients, and the core between them."""
