"""The tutorials of docs/, run as a reader runs them."""
