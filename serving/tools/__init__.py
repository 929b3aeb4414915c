"""Tools that work on systems and models from outside."""
