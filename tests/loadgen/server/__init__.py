"""Tests of `loadgen.server`, against a real HTTP server."""
