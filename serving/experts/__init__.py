"""Experts of a group of ranks: where they lie, who gets how many tokens, and how that changes while tokens flow."""
