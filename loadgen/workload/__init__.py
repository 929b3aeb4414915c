"""Workload: prompts, lengths, sessions, client behaviour, and the plan that joins them with times."""
