"""Benchmark of the generator itself, against a server with negligible cost."""

from loadgen.selftest.ceiling import BlastServer, start_blast_server

__all__ = ["BlastServer", "start_blast_server"]
