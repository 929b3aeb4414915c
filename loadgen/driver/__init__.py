"""Sends jobs at their time, from worker processes, and brings back what was measured."""
