"""What works on systems and models from outside."""
