"""Tests of trace files: reading and writing."""
