"""How large the pools are."""
