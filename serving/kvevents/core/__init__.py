"""What is published, in which order and form; no sockets."""
