"""Groups of ranks: instances of several processes that share a model's experts."""
