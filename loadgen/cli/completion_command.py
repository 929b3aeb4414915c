"""`loadgen completion`: a script by which a shell completes this command line."""

import argparse


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Declare the flags."""
    parser.add_argument("shell", choices=("bash", "zsh", "tcsh"), help="the shell that will read it")


def run(flags: argparse.Namespace) -> int:
    """Print the script. Returns: 0."""
    import shtab

    from loadgen.cli.main import command_parser

    print(shtab.complete(command_parser(), shell=flags.shell))
    return 0
