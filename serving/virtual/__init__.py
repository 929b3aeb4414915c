"""The same cores in virtual time."""
