"""Architectures that are served, a page each."""
