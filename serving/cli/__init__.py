"""`cloudmatrix`: a module per command, and the code that several of them share."""

from serving.cli.command_line import command_parser, main

__all__ = ["command_parser", "main"]
