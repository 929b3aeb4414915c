"""Tests of `loadgen.selftest`."""
