"""Pages of the documentation, and what makes some of them. Not part of the package."""
