"""The thread and the sockets that publish."""
