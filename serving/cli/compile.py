"""`cloudmatrix compile`: make simulations run nearly twice as fast."""

import argparse

DESCRIPTION = """\
Compile the modules that a simulation spends its time in (mypyc: the same sources, as C). From then on `simulate`,
`plan` and `reproduce` use them by themselves, until a source changes. Takes about a minute, once; needs a C compiler,
Python's headers, and `pip install 'mypy[mypyc]>=2.4,<3'`. Results stay the same to the last byte.
Prints the folder; delete it to go back.
"""
EPILOG = ""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("--quiet", action="store_true", help="no progress")


def run(arguments: argparse.Namespace) -> int:
    """Compile, and print the folder.

    Raises: ConfigError in one line.
    """
    from loadgen.progress_bar import ProgressBar
    from serving.tools.compilation.build import build

    with ProgressBar("checking types", counted=True, quiet=arguments.quiet) as bar:

        def show(done: int, of: int) -> None:
            if of:
                bar.update(done, what="compiling", total=of)

        folder = build(show)
    print(folder)
    return 0
