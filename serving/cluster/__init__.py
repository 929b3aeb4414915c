"""Ray support shared by all actors of the system."""
