"""What is asked of the server beside the load itself: its models, its tokenizer, its metrics."""
