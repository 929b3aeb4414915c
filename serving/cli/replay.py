"""`cloudmatrix replay`: check that recorded decisions follow from the recorded inputs."""

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loadgen.exit_codes import ExitCode
from serving.errors import DecisionLogError
from serving.values.decision_log import SUFFIX

if TYPE_CHECKING:
    from serving.tools.replay import ReplayResult

"""Not 1: the existing calls match the recording. Not 0: a truncated log must not pass for complete."""
DESCRIPTION = """\
Feed recorded decision logs to fresh engines and gateways, and compare every decision with the recorded one.

An instance or gateway of a system that runs with `[engine] decision_log = "FOLDER"` writes one file into that folder:
every call of its scheduler, or of its router, admission and journals, with all inputs and the result.
A replay needs no model, no Ray and no accelerator, and runs much faster than the system did. It shows
whether this version makes the same decisions, and reproduces a failure of a live system in a debugger.
"""
EPILOG = """\
examples:
  cloudmatrix replay logs/                       every log in a folder
  cloudmatrix replay logs/engine-decode-x1.decisions
  cloudmatrix replay logs/ --json | jq '.[] | select(.identical | not)'

Exit code: 1 = a decision differs or a log is broken, 6 = no decision differs, but a log is INCOMPLETE. The first
difference of each log is printed, and the defect of a broken one. A log gets its end mark when `cloudmatrix serve` or
the replica is stopped. Without the mark the process was killed or is still running, or the file was cut: it is replayed
up to its end. Logs contain prompts and responses as token ids.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("logs", nargs="+", type=Path, metavar="FILE", help=f"a log, or a folder of {SUFFIX} files")
    parser.add_argument("--json", action="store_true", help="print the results as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Replay and report each log.

    Raises: DecisionLogError if there is no log to replay.
    """
    from serving.tools.replay import replay

    results = []
    for path in find_logs(arguments.logs):
        try:
            results.append(_row(path, replay(path)))
        except DecisionLogError as error:  # continue with the other logs
            results.append({**_row(path, None), "error": str(error)})
        if not arguments.json:
            _show(results[-1])
    if arguments.json:
        print(json.dumps(results, indent=2))
    if not all(result["identical"] for result in results):
        return ExitCode.FAILURE
    return 0 if all(result["complete"] for result in results) else ExitCode.INCOMPLETE


def _row(path: Path, result: "ReplayResult | None") -> dict[str, Any]:
    """One log in the JSON output; None = it could not be replayed."""
    difference = result.difference if result is not None else None
    return {
        "log": str(path),
        "kind": result.kind if result is not None else None,
        "name": result.name if result is not None else None,
        "version": result.version if result is not None else None,
        "calls": result.calls if result is not None else {},
        "identical": result is not None and result.identical,
        "complete": result is not None and result.complete,
        "difference": str(difference) if difference is not None else None,
        "ending": result.ending if result is not None else "",
        "error": None,
    }


def find_logs(given: list[Path]) -> list[Path]:
    """The given log files, and those in the given folders.

    Raises: DecisionLogError if a folder has none, or a file does not exist.
    """
    found: list[Path] = []
    for path in given:
        if path.is_dir():
            inside = sorted(path.glob(f"*{SUFFIX}"))
            if not inside:
                raise DecisionLogError(f"{path} holds no {SUFFIX} file; was [engine] decision_log set?")
            found += inside
        elif path.exists():
            found.append(path)
        else:
            raise DecisionLogError(f"no decision log {path}")
    return found


def _show(result: dict[str, Any]) -> None:
    if result["error"]:
        print(f"BROKEN     {result['log']}: {result['error']}")
        return
    total = sum(result["calls"].values())
    most = ", ".join(f"{count} {name}" for name, count in list(result["calls"].items())[:4])
    verdict = "DIFFERENT" if not result["identical"] else "identical" if result["complete"] else "INCOMPLETE"
    print(f"{verdict}  {result['kind']} {result['name']}: {total} calls ({most})")
    if result["difference"]:
        print(f"    first difference: {result['difference']}")
    if result["ending"]:
        print(f"    {result['ending']}")
