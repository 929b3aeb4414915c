"""Tests of recording a run as a trace, and of replaying that."""
