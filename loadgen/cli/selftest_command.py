"""`loadgen selftest`."""

import argparse

from loadgen.cli import values
from loadgen.quantities import Duration
from loadgen.selftest.ceiling import Ceiling, measure_ceiling

PACED_TOKENS_PER_S = 80.0


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Declare the flags."""
    parser.add_argument(
        "--seconds",
        type=Duration(above_zero=True),
        default=3.0,
        metavar="T",
        help="of each of the two runs (default 3s)",
    )
    parser.add_argument("--streams", type=values.count, default=64, metavar="N", help="open at once (default 64)")
    parser.epilog = "Above half of the paced figure per worker, the generator's own queueing affects ITL."


def run(flags: argparse.Namespace) -> int:
    """Measure against a server of our own: at full speed, and with one read per token.

    Raises: LoadgenError if the server does not start.
    """
    for title, pace in (
        ("as fast as it goes", None),
        (f"{PACED_TOKENS_PER_S:g} tokens/s a stream", PACED_TOKENS_PER_S),
    ):
        print(f"{title}: {_line(measure_ceiling(seconds=flags.seconds, streams=flags.streams, tokens_per_s=pace))}")
    return 0


def _line(found: Ceiling) -> str:
    """One measurement."""
    failed = f", {found.failed} requests FAILED" if found.failed else ""
    return (
        f"{found.tokens_per_cpu_s:,.0f} tokens per CPU second ({found.us_per_token:.2f} us each), "
        f"{found.tokens_per_read:.1f} tokens a read, {found.tokens_per_s:,.0f} tokens/s in fact{failed}"
    )
