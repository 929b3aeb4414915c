"""The tutorials of docs/, run like a reader does."""
