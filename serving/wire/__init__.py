"""Frames between gateways and instances, over TCP."""
