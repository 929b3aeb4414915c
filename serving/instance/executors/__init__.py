"""Executors of a step: native, torch, simulated."""
