"""`cloudmatrix completion SHELL`: completion of this command line, and of loadgen's, by the Tab key."""

import argparse

DESCRIPTION = """\
Print a script that completes the words of `cloudmatrix` and `loadgen` in a shell: commands, options, choices, files.
"""
EPILOG = """\
Examples:
  cloudmatrix completion bash > ~/.local/share/bash-completion/completions/cloudmatrix
  source <(cloudmatrix completion bash)
  cloudmatrix completion zsh > "${fpath[1]}/_cloudmatrix"
  cloudmatrix completion bash --program loadgen > ~/.local/share/bash-completion/completions/loadgen
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("shell", choices=("bash", "zsh", "tcsh"), help="the shell that will read it")
    parser.add_argument("--program", choices=("cloudmatrix", "loadgen"), default="cloudmatrix", help="whose words")


def run(arguments: argparse.Namespace) -> int:
    """Print the script. Returns: 0."""
    import shtab

    from loadgen.cli.main import command_parser as of_loadgen
    from serving.cli.command_line import command_parser

    parser = command_parser() if arguments.program == "cloudmatrix" else of_loadgen()
    print(shtab.complete(parser, shell=arguments.shell))
    return 0
