"""Clients of a running system, without terminal code: a conversation with its gateway, its pools at the dashboard."""
