"""Metrics: their meaning and their computation, as pure functions of request records."""
