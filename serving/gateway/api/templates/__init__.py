"""Chat templates: foreign code, run in processes of its own."""
