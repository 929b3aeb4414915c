"""Live drivers without Ray: the thread that drives an engine, the link server in front of it, the gateway's backend.

`deployments/` wraps these in Ray Serve replicas; tests run them in one process with real sockets and shared memory.
"""
