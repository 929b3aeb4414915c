"""Tests of the trace file: writing, reading, recording, replaying."""
