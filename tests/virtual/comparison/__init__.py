"""Tests of comparisons of two simulations."""
