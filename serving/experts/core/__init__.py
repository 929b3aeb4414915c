"""Decisions about experts: pure functions and state machines, with time passed in."""
