"""`loadgen run | compare | report | trace | selftest`: reads the command line and turns errors into one line each.

A command's code is imported when it is chosen, so that `--help` and every usage error respond immediately.
"""

import argparse
import importlib
import sys
from collections.abc import Sequence
from typing import Protocol

from loadgen.command_words import heed_interrupt, unknown_command
from loadgen.errors import LoadgenError
from loadgen.exit_codes import ExitCode

COMMANDS = {
    "run": "send requests to a server and measure its responses",
    "compare": "show how two or more runs differ, with confidence",
    "report": "write report.html of a saved run or sweep again",
    "trace": "turn a run into a trace file that replays exactly; describe a trace file",
    "selftest": "measure how many streamed tokens this machine can receive",
    "completion": "print a script that completes commands and flags in your shell",
}

_EXAMPLES = """examples:
  loadgen run --concurrency 8 --duration 30s                      closed loop against 127.0.0.1:8000
  loadgen run --request-rate 4 --slo ttft=500ms,tpot=50ms         open loop, Poisson
  loadgen run --sweep rate --slo ttft=500ms,tpot=50ms --out sweep latency against rate, with report
  loadgen run --find-max rate --slo ttft=500ms,tpot=50ms          the largest rate within the SLOs
  loadgen run --dataset-name mooncake --dataset-path trace.jsonl --length-scale 0.03125 --out replay
  loadgen compare before after
"""


class LoadgenCommand(Protocol):
    """Interface of a command's module."""

    def add_flags(self, parser: argparse.ArgumentParser) -> None:
        """Declare the command's flags."""

    def run(self, flags: argparse.Namespace) -> int:
        """Run the command. Returns: the exit code. Raises: LoadgenError."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Returns: an `ExitCode`; errors are reported in one line.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    chosen = next((argument for argument in arguments if argument in COMMANDS), None)
    first = next((argument for argument in arguments if not argument.startswith("-")), None)
    if first is not None and first not in COMMANDS:
        print(f"loadgen: {unknown_command(first, COMMANDS, 'loadgen')}", file=sys.stderr)
        raise SystemExit(ExitCode.USAGE)
    parser = command_parser(chosen or "")
    if not arguments:
        parser.print_help()
        print("loadgen: no COMMAND was given", file=sys.stderr)
        raise SystemExit(ExitCode.USAGE)
    flags = parser.parse_args(arguments)
    heed_interrupt()
    try:
        return _load(flags.command).run(flags)
    except LoadgenError as error:
        print(f"loadgen: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("loadgen: interrupted", file=sys.stderr)
        return ExitCode.INTERRUPTED


def command_parser(chosen: str | None = None) -> argparse.ArgumentParser:
    """The parser of all commands.

    Args:
        chosen: the command that will be given: only its flags are declared; None = those of every command.
    Effects: imports the modules of these commands.
    """
    parser = argparse.ArgumentParser(
        prog="loadgen",
        description="Load generator for OpenAI-compatible servers. `loadgen COMMAND --help` has the flags.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, text in COMMANDS.items():
        subparser = subparsers.add_parser(name, help=text, description=text.capitalize() + ".", allow_abbrev=False)
        if chosen in (name, None):
            command = _load(name)
            command.add_flags(subparser)
    return parser


def _load(name: str) -> LoadgenCommand:
    module: LoadgenCommand = importlib.import_module(f"loadgen.cli.{name}_command")
    return module
