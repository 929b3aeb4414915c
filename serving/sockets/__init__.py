"""Code shared by all sockets between our processes: proof of the secret, TLS, ports, and bulk transfers."""
