"""Scenario files of faults: one vocabulary, one parser and one schedule for live systems and virtual time."""
