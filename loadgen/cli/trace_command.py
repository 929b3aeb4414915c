"""`loadgen trace`."""

import argparse
from pathlib import Path

from loadgen.cli import values
from loadgen.recording.record import DEFAULT_BLOCK_TOKENS, TraceFormat, record_trace
from loadgen.trace.describe import describe


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Declare the flags."""
    commands = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    record = commands.add_parser("record", help="write the trace of a run", allow_abbrev=False)
    record.add_argument("folder", type=Path, metavar="DIR", help="folder of a run (loadgen run --out DIR)")
    record.add_argument("-o", "--out", type=Path, metavar="FILE", help="default: DIR/trace.jsonl")
    record.add_argument(
        "--format",
        type=TraceFormat,
        choices=list(TraceFormat),
        default=TraceFormat.LOADGEN,
        help="mooncake: times, lengths and hash_ids only, for other tools (default: loadgen, which replays exactly)",
    )
    record.add_argument(
        "--block-tokens",
        type=values.count,
        default=DEFAULT_BLOCK_TOKENS,
        metavar="N",
        help="tokens of a block of hash_ids, where the workload had none (default %(default)s)",
    )
    info = commands.add_parser("info", help="say what a trace file holds", allow_abbrev=False)
    info.add_argument("file", type=Path, metavar="FILE")


def run(flags: argparse.Namespace) -> int:
    """Record or describe.

    Raises: UsageError, TraceFormatError, OutputError.
    """
    if flags.action == "info":
        print(*describe(flags.file).lines(), sep="\n")
        return 0
    path = flags.out or flags.folder / "trace.jsonl"
    done = record_trace(flags.folder, path, form=flags.format, block_tokens=flags.block_tokens)
    left_out = f"; {done.left_out} left out" if done.left_out else ""
    print(f"{path}: {done.requests} requests in {done.sessions} sessions{left_out}")
    print(f"replay it: loadgen run --dataset-name trace --dataset-path {path}")
    return 0
