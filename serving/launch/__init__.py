"""Start and stop of a system on Ray."""
