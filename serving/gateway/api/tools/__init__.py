"""Families of tool calls and reasoning: how a model writes them, how they are read, and which grammar binds them."""
