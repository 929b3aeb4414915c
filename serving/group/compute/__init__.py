"""Compute of a rank: experts in slots, the exchange with its peers, moves of experts while it serves."""
