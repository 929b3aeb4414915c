"""What the actors of every party need of Ray."""
