"""The gateway's decisions, without I/O: events in, effects out."""
