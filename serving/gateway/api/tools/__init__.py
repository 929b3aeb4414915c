"""Families of tool calls and reasoning: how a model writes them, how they are parsed, and the grammar for them."""
