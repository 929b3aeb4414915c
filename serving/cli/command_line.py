"""`cloudmatrix`: finds the command, and turns errors into one line each.

A command's module is imported when it is chosen, so that `--help` and every mistake respond quickly.
"""

import argparse
import importlib
import itertools
import sys
from collections.abc import Sequence
from typing import NoReturn, Protocol

COMMANDS = {
    "demo": "six things in two minutes: chat, cache, kill, scale, load, simulate; ends with a report",
    "serve": "start a local cluster and serve a model until Ctrl-C; or deploy on a running Ray",
    "stop": "stop a system that `serve` started on this machine",
    "models": "list the models on this machine, by the names that `serve` takes",
    "pull": "download a model: smollm2, or org/name of the Hugging Face Hub",
    "rm": "delete an imported or downloaded model",
    "down": "remove what was deployed on a running Ray",
    "doctor": "check this machine, or every host of a Ray, for what would keep the system from running",
    "rotate-secret": "give a running system a new secret",
    "node-env": "print the environment that a host needs before `ray start`",
    "agents": "print settings by which Codex, Claude Code and others use a running system",
    "chat": "chat with a running system in the terminal",
    "status": "show pools, replicas, NPUs, HBM and queues of a running system",
    "logs": "print or follow the logs of a system on this machine, or of one pool or replica",
    "events": "list what happened to replicas: started, died, frozen, replaced",
    "kill": "kill a replica of a system on this machine, to see what happens",
    "explain": "show why past requests were slow or failed: the slowest, the failed, or one by its id",
    "experts": "show and change the experts of groups of ranks: load, balance, placement",
    "pool": "show the KV-cache pool: its servers, how full they are, its hits",
    "scale": "change how many replicas a pool has",
    "decisions": "list the scaling decisions and their reasons",
    "replay": "replay the decision log of a live run through the same code",
    "cost": "predict the time of a decode or prefill step, with its formula and expected error",
    "import": "make a checkpoint folder of a GGUF file; `import smollm2` downloads a real model",
    "quantize": "make an INT8 checkpoint of a model, without training, and report the loss of quality",
    "evaluate": "measure perplexity, distance from a reference model, multiple-choice tasks",
    "simulate": "run a load on simulated supernodes, in virtual time",
    "compare": "compare two simulations: settings, and every figure with its change",
    "reproduce": "reproduce published tables and figures: theirs, ours, error",
    "plan": "find how many NPUs a trace needs, and how to split them",
    "compile": "make simulations run nearly twice as fast",
    "chaos": "kill, freeze and disturb replicas under load; prove that nothing was lost",
    "completion": "print a script that completes commands and flags in your shell",
}
"""Every command is the module of its name in this package, with underscores."""


class Command(Protocol):
    """The interface of a command's module."""

    DESCRIPTION: str
    EPILOG: str
    """Examples and exit codes; may be empty."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the command's arguments; without expensive imports."""

    def run(self, arguments: argparse.Namespace) -> int:
        """Run the command. Returns: the exit code. Raises: ServingError, HardwareError for mistakes, in one line."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Returns: an `ExitCode`; errors are reported in one line.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    chosen = next((word for word in words if not word.startswith("-")), "")
    if not words:
        command_parser("").print_help()
        _refuse("no COMMAND was given")
    if chosen and chosen not in COMMANDS:
        from loadgen.command_words import unknown_command

        _refuse(unknown_command(chosen, COMMANDS, "cloudmatrix"))
    return _run(command_parser(chosen).parse_args(words))


def command_parser(chosen: str | None = None) -> argparse.ArgumentParser:
    """The parser of all commands.

    Args:
        chosen: the command that will be given: only its arguments are declared; None = those of every command.
    Returns: a parser whose answer has `run`, what `main` calls.
    Effects: imports the modules of these commands.
    """
    parser = argparse.ArgumentParser(
        prog="cloudmatrix",
        description="Disaggregated LLM serving on virtual Ascend NPUs: pools for prefill, decode and KV cache.",
        epilog="Start with `cloudmatrix demo`, or with `cloudmatrix serve`; both need no network and no accelerator.",
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="show the version and exit")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, text in COMMANDS.items():
        below = commands.add_parser(name, help=text, formatter_class=_Formatter)
        if chosen in (name, None):
            command: Command = importlib.import_module(f"serving.cli.{name.replace('-', '_')}")
            below.description, below.epilog = command.DESCRIPTION, command.EPILOG
            command.add_arguments(below)
            below.set_defaults(run=command.run)
    return parser


class _Formatter(argparse.HelpFormatter):
    """Wraps the sentences of a text to the terminal's width, and leaves indented lines as they are."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        fill = super()._fill_text
        runs = itertools.groupby(text.splitlines(), key=lambda line: (bool(line.strip()), line[:1].isspace()))
        return "\n".join(
            fill("\n".join(lines), width, indent) if is_text and not is_indented else "\n".join(lines)
            for (is_text, is_indented), lines in runs
        )


class _Version(argparse.Action):
    """`--version`, computed only when requested."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from serving.version import VERSION

        print(f"cloudmatrix {VERSION}")
        parser.exit()


def _refuse(why: str) -> NoReturn:
    from loadgen.exit_codes import ExitCode

    print(f"cloudmatrix: {why}", file=sys.stderr)
    raise SystemExit(ExitCode.USAGE)


def _run(arguments: argparse.Namespace) -> int:
    import logging

    from hardware.errors import HardwareError
    from loadgen.command_words import heed_interrupt
    from loadgen.exit_codes import ExitCode
    from serving.errors import NotWrittenError, ServingError, UnavailableError

    heed_interrupt()
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    try:
        code: int = arguments.run(arguments)
        sys.stdout.flush()  # while a missing reader can still be handled
    except (ServingError, HardwareError) as error:
        print(f"cloudmatrix: {error}", file=sys.stderr)
        if isinstance(error, NotWrittenError):
            return ExitCode.OUTPUT
        unusable = isinstance(error, UnavailableError) and not getattr(error, "mistaken", False)
        return ExitCode.SERVER if unusable else ExitCode.USAGE
    except KeyboardInterrupt:
        print("cloudmatrix: interrupted", file=sys.stderr)
        return ExitCode.INTERRUPTED
    except BrokenPipeError:
        from serving.terminal import silence

        silence(sys.stdout)
        return ExitCode.UNREAD
    return code
