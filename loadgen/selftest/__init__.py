"""Measures the generator itself, against a server that costs next to nothing."""

from loadgen.selftest.process import BlastServer, start_blast_server

__all__ = ["BlastServer", "start_blast_server"]
