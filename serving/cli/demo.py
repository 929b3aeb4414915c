"""`cloudmatrix demo`: the six steps of the README in one command, on a system of its own, with a report."""

import argparse
from pathlib import Path

from loadgen.exit_codes import ExitCode

DESCRIPTION = """\
Show what this system does, in two or three minutes: chat; watch the cache; kill the instance that is generating an
answer, and see the answer continue; scale while a stream runs; load it; simulate a supernode. It starts a system of its
own on free ports and stops it at the end; other systems are not affected. Needs no network and no accelerator.
"""
EPILOG = """\
Examples:
  cloudmatrix demo
  cloudmatrix demo --only chat --only kill
  cloudmatrix demo --skip load --out demo1 > demo1.txt
Steps: chat, cache, kill, scale, load, simulate. On a terminal each step after the first waits for a key: Enter starts
it, s skips it, q quits; --no-wait runs all. Ctrl-C skips the running step, twice ends the demo; the report is written
in any case.
Exit code 1: a step failed.
"""
NAMES = ("chat", "cache", "kill", "scale", "load", "simulate")
_FOLDER = "demo-report"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    for flag, text in (("--only", "run this step"), ("--skip", "leave this step out")):
        parser.add_argument(
            flag,
            action="append",
            default=[],
            choices=NAMES,
            metavar="NAME",
            help=f"{text}; may be given more than once",
        )
    parser.add_argument("--no-wait", action="store_true", help="do not wait for a key between steps")
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help=f"folder for report.html (default {_FOLDER}, numbered if there is one)"
    )


def run(arguments: argparse.Namespace) -> int:
    """Run the demo, and write the report.

    Raises: ConfigError, UnavailableError in one line.
    """
    from serving.terminal import make_folder, table_console, write_file
    from serving.tools.demo.demo_page import report_page
    from serving.tools.demo.demo_run import chosen_steps, run_demo
    from serving.tools.demo.narrator import Keys, Narrator

    steps = chosen_steps(arguments.only, arguments.skip)
    folder = _free_folder(arguments.out)
    make_folder(folder)
    narrator = Narrator(table_console())
    done = run_demo(steps, folder, narrator, Keys(awaited=not arguments.no_wait))
    report = folder / "report.html"
    write_file(report, report_page(done).encode())
    narrator.line()
    for line in done.left:
        narrator.outcome("failed", line)
    narrator.address("report", report.resolve().as_uri())
    if done.failed:
        return ExitCode.FAILURE
    return ExitCode.INTERRUPTED if done.interrupted else ExitCode.OK


def _free_folder(asked: Path | None) -> Path:
    """The folder of the report. Raises: ConfigError if the requested one is in use."""
    from serving.errors import ConfigError

    if asked is not None:
        if asked.is_dir() and any(asked.iterdir()):
            raise ConfigError(f"--out {asked} is not empty: name another folder")
        return asked
    folder, number = Path(_FOLDER), 1
    while folder.exists():
        number += 1
        folder = Path(f"{_FOLDER}-{number}")
    return folder
