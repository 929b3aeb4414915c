"""Experts of a rank that serves: their slots, moved and mapped."""
