"""Requests to the server outside the load: its models, its tokenizer, its metrics."""
