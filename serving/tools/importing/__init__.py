"""Checkpoint folders made from GGUF files."""
