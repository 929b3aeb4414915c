"""What computes a step: native, torch, simulated."""
