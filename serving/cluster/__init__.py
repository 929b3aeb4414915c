"""Ray for the actors of every party: the parts that all of them need."""
