"""Contents, order and form of what is published; no sockets."""
