"""Requests and answers in tokens, as vLLM's renderers make them."""
