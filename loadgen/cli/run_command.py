"""`loadgen run`."""

import argparse
import sys

import msgspec
from rich.console import Console

from loadgen.cli.bench import Bench, check_series, open_bench
from loadgen.cli.build_endpoint import base_url, refuse_user
from loadgen.cli.build_workload import check_workload_flags
from loadgen.cli.repeated import run_repeated, save_flat_file
from loadgen.cli.run_flags import add_form_flags, add_load_flags, add_output_flags, add_series_flags, add_target_flags
from loadgen.cli.search import run_search
from loadgen.cli.series import run_sweep
from loadgen.cli.workload_flags import add_behaviour_flags, add_workload_flags
from loadgen.output import explained
from loadgen.record import FAILURES, NOT_COUNTED
from loadgen.result import RunResult, SweepResult
from loadgen.run_folder import REPORT, RESULT, SWEEP, check_free
from loadgen.run_report.console import print_result, print_sweep

TOO_MANY_FAILURES = 5


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Declare all flags of `loadgen run`."""
    parser.usage = "loadgen run [--url URL] [--concurrency N | --request-rate R | ...] [FLAGS]"
    for add in (
        add_target_flags,
        add_form_flags,
        add_load_flags,
        add_series_flags,
        add_workload_flags,
        add_behaviour_flags,
        add_output_flags,
    ):
        add(parser)


def run(flags: argparse.Namespace) -> int:
    """Run after every check that does not need the server.

    Raises: LoadgenError.
    """
    base_url(flags)
    if flags.metrics_url:
        refuse_user("--metrics-url", flags.metrics_url)
    check_series(flags)
    check_workload_flags(flags)
    _check_out(flags)
    # Progress and tables on stderr if stdout is to be read by a program.
    console = Console(stderr=flags.json, soft_wrap=True)
    with open_bench(flags, console) as bench:
        if flags.sweep or flags.find_max:
            return _series(bench)
        return _single(bench)


def _single(bench: Bench) -> int:
    """One run, repeated or not."""
    load = bench.load()
    finished = run_repeated(bench, load, seed=bench.seed, folder=bench.flags.out)
    path = save_flat_file(bench, load, finished.result, [run.records for run in finished.runs])
    _show(bench, finished.result)
    if path:
        bench.console.print(f"flat result: {path}")
    return _status(bench, [finished.result], stopped=finished.stopped)


def _series(bench: Bench) -> int:
    result, stopped = run_search(bench) if bench.flags.find_max else run_sweep(bench)
    _show(bench, result)
    return _status(bench, [point.result for point in result.points if not point.aborted], stopped=stopped)


def _show(bench: Bench, result: RunResult | SweepResult) -> None:
    """The figures, and where the files are."""
    flags, console = bench.flags, bench.console
    if flags.json:
        sys.stdout.buffer.write(msgspec.json.encode(result) + b"\n")
        sys.stdout.flush()
    elif isinstance(result, SweepResult):
        print_sweep(result, console)
    else:
        print_result(result, console)
    if flags.out:
        name = SWEEP if isinstance(result, SweepResult) else RESULT
        report = f", {flags.out / REPORT}" if flags.report else ""
        console.print(f"seed {bench.seed}; written: {flags.out / name}{report}")
    else:
        console.print(f"seed {bench.seed}; nothing written (--out DIR keeps results and makes a report)")


def _status(bench: Bench, results: list[RunResult], *, stopped: int) -> int:
    """Exit status."""
    if stopped:
        return stopped
    failed = sum(count for result in results for name, count in result.outcomes.items() if name in FAILURES)
    failed += sum(result.contradictions for result in results)
    counted = sum(count for result in results for name, count in result.outcomes.items() if name not in NOT_COUNTED)
    if counted == 0 or failed / counted > bench.flags.max_failure_share:
        return TOO_MANY_FAILURES
    return 0


def _check_out(flags: argparse.Namespace) -> None:
    """Find out before the run whether results can be written.

    Raises: OutputError.
    """
    if flags.out is None:
        return
    check_free(flags.out)
    with explained(flags.out):
        flags.out.mkdir(parents=True, exist_ok=True)
        probe = flags.out / ".writable"
        probe.touch()
        probe.unlink()
