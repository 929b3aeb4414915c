"""`loadgen trace`."""

import argparse
from pathlib import Path

from loadgen.cli import values
from loadgen.recording.run_to_trace import DEFAULT_BLOCK_TOKENS, record_trace
from loadgen.trace import KEEPS_IDS, Reading, TraceForm, convert, describe, open_trace

_FORMS = list(TraceForm)


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Declare the flags."""
    commands = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    record = commands.add_parser("record", help="write the trace of a run", allow_abbrev=False)
    record.add_argument("folder", type=Path, metavar="DIR", help="folder of a run (loadgen run --out DIR)")
    record.add_argument("-o", "--out", type=Path, metavar="FILE", help="default: DIR/trace.jsonl")
    record.add_argument(
        "--format",
        type=TraceForm,
        choices=_FORMS,
        default=TraceForm.LOADGEN,
        help="for other tools: times, lengths and, in mooncake and bailian, hash_ids (default: loadgen, which replays "
        "exactly)",
    )
    record.add_argument(
        "--block-tokens",
        type=values.count,
        default=DEFAULT_BLOCK_TOKENS,
        metavar="N",
        help="tokens of a block of hash_ids, where the workload had none (default %(default)s)",
    )
    info = commands.add_parser("info", help="describe a trace of any format", allow_abbrev=False)
    info.add_argument("file", type=Path, metavar="FILE", help="file, or folder of a ServeGen model")
    _add_reading_flags(info)
    other = commands.add_parser("convert", help="write a trace of any format in another", allow_abbrev=False)
    other.add_argument("file", type=Path, metavar="FILE", help="file, or folder of a ServeGen model")
    other.add_argument("-o", "--out", type=Path, required=True, metavar="FILE", help="file to write")
    other.add_argument("--format", type=TraceForm, choices=_FORMS, required=True, help="of the file to write")
    _add_reading_flags(other)


def _add_reading_flags(parser: argparse.ArgumentParser) -> None:
    """Declare flags for what the format of the file that is read leaves open."""
    parser.add_argument("--block-tokens", type=values.count, metavar="N", help="tokens of a block of its hash_ids")
    parser.add_argument(
        "--columns",
        metavar="KEY=NAME,...",
        help="of a CSV: timestamp=NAME,input=NAME,output=NAME, and unit=ms, us or ns for the times, if not s",
    )
    parser.add_argument("--seed", type=values.whole, default=0, metavar="N", help="of a ServeGen folder's requests")


def run(flags: argparse.Namespace) -> int:
    """Record, describe or convert.

    Raises: UsageError, TraceFormatError, OutputError.
    """
    if flags.action == "record":
        return _record(flags)
    trace = open_trace(flags.file, Reading(flags.block_tokens, seed=flags.seed, columns=flags.columns))
    if flags.action == "info":
        print(*describe(trace).lines(), sep="\n")
        return 0
    count = convert(trace, flags.out, flags.format)
    lost = "" if flags.format in KEEPS_IDS or trace.block_tokens is None else "; it holds no hash_ids"
    print(f"{flags.out}: {count} requests{lost}", *trace.notes.values(), sep="\n")
    return 0


def _record(flags: argparse.Namespace) -> int:
    """Write the trace of a run."""
    path = flags.out or flags.folder / "trace.jsonl"
    done = record_trace(flags.folder, path, form=flags.format, block_tokens=flags.block_tokens)
    left_out = f"; {done.left_out} left out" if done.left_out else ""
    print(f"{path}: {done.requests} requests in {done.sessions} sessions{left_out}")
    print(f"replay it: loadgen run --dataset-name trace --dataset-path {path}")
    return 0
