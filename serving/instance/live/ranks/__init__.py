"""Instances of several ranks: the rank's process, and the shell that makes a group of them and keeps it whole."""
