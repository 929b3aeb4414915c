"""`cloudmatrix completion SHELL`: completion of this command line by the Tab key."""

import argparse

DESCRIPTION = """\
Print a script that completes the words of `cloudmatrix` in a shell: commands, options, choices. `loadgen completion`
does the same for the load generator.
"""
EPILOG = """\
Examples:
  cloudmatrix completion bash > ~/.local/share/bash-completion/completions/cloudmatrix
  source <(cloudmatrix completion bash)
  cloudmatrix completion zsh > "${fpath[1]}/_cloudmatrix"
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("shell", choices=("bash", "zsh", "tcsh"), help="the shell that will read it")


def run(arguments: argparse.Namespace) -> int:
    """Print the script. Returns: 0."""
    import shtab

    from serving.cli.command_line import command_parser

    print(shtab.complete(command_parser(), shell=arguments.shell))
    return 0
