"""`cloudmatrix`: every command a module of its own, and what several of them share."""

from serving.cli.command_line import command_parser, main

__all__ = ["command_parser", "main"]
