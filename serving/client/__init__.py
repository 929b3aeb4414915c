"""Clients of a running system, which know no terminal: a conversation with its gateway, its pools at the dashboard."""
