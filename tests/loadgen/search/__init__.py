"""Tests of `loadgen.search`, against simulated servers."""
