"""Drivers of a group of ranks: the shell that makes and watches them, and the process of each rank."""
