"""One instance of an engine pool."""
