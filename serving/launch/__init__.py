"""Starting a system on Ray, and ending it."""
