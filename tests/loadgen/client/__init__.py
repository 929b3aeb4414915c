"""Tests of `loadgen.client`."""
