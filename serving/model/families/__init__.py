"""The supported architectures, one module each."""
