"""Pages of the documentation, and generators of some of them. Not part of the package."""
