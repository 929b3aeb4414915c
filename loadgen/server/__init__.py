"""Questions to the server beside the load itself: its models, its tokenizer, its metrics."""
