"""Checkpoint folders made of GGUF files."""
