"""`loadgen run`."""

import argparse
import functools
import math
import sys
import time
from dataclasses import dataclass

import msgspec
from rich.text import Text

from loadgen.cli.bench import Bench, check_series, open_bench
from loadgen.cli.build_endpoint import base_url, refuse_user
from loadgen.cli.build_workload import check_workload_flags
from loadgen.cli.repeated import Finished, run_repeated, save_flat_file
from loadgen.cli.run_flags import add_form_flags, add_load_flags, add_output_flags, add_series_flags, add_target_flags
from loadgen.cli.series import FULL_REQUESTS, IDLE_REQUESTS, SweepSeries, run_sweep, short_run
from loadgen.cli.workload_flags import add_behaviour_flags, add_workload_flags
from loadgen.driver.progress import Progress
from loadgen.errors import UsageError, explained
from loadgen.exit_codes import ExitCode
from loadgen.metrics.verdict import kept_rate
from loadgen.record import FAILURES, NOT_COUNTED
from loadgen.report import numbers
from loadgen.result import RunResult, SweepResult
from loadgen.run_folder import REPORT, RESULT, SWEEP, check_free
from loadgen.run_report.console import print_result, print_sweep
from loadgen.run_report.sweep_charts import load_text
from loadgen.search import backlog, saturation
from loadgen.search.saturation import Probe, ProbeResult, SearchFound, SearchSettings, Verdict
from loadgen.terminal import terminal_console

# The search for the largest load that holds the SLOs: short runs choose the starting point, then probes follow.

_LARGEST_CONCURRENCY = 4096
_OF_FULL = 0.5
"""Part of the full server's rate that is probed first: neither idle nor, with usual limits, too much."""
_OF_FULL_IN_TIME, _GROWTH_IN_TIME = 0.8, 1.5
"""The same with `--within`, and the factor between probes: most servers are then bracketed by two probes."""
_FULL_REQUESTS_IN_TIME = 32
_OCTAVES_DOWN = 4
"""Halvings of the first rate at most: the search does not go below 1/16 of it."""


@dataclass(frozen=True)
class Ends:
    """Figures of the short runs.

    Attributes:
        full_per_s: requests per second with all requests in flight. full_s: mean duration of a request then.
        idle_s: mean duration of a request alone; 0 where it was not measured.
    """

    full_per_s: float
    full_s: float
    idle_s: float = 0.0


def run_search(bench: Bench) -> tuple[SweepResult, int]:
    """Probe until the largest value that holds the SLOs is bracketed by two neighbours.

    Returns: also the exit code if it was stopped early, else 0.
    Raises: as `run_once`; UsageError if no request of the initial short run succeeded.
    Effects: reports the expected duration, then the result of each probe.
    """
    flags = bench.flags
    whole = flags.find_max == "concurrency"
    series = SweepSeries(bench, flags.find_max)
    begun_s = time.monotonic()
    ends = _ends(bench, series, whole=whole)
    settings = search_settings(bench, ends, whole=whole, spent_s=time.monotonic() - begun_s)
    _say(bench, forecast_words(bench, settings, ends))
    results: list[ProbeResult] = []
    step = saturation.next_step(settings, results)
    while isinstance(step, Probe) and series.pause():
        _say(bench, f"Probe {len(results) + 1}: {_probe_words(bench, step, ends)}")
        make_watch = None if whole else functools.partial(_Backlog, step.value, step.requests)
        begun_s = time.monotonic()
        with series.kept():
            finished = series.point(step.value, requests=step.requests, make_watch=make_watch)
        if series.stopped:
            break
        results.append(_probe_result(step.value, finished, time.monotonic() - begun_s + flags.pause))
        _say(bench, f"  {_outcome_words(settings, results)}")
        step = saturation.next_step(settings, results)
    if isinstance(step, SearchFound):
        series.result.best, series.result.first_failed = step.best, step.first_failed
        series.result.explanation = step.explanation
    else:
        series.result.explanation = "the search was stopped before it had found the limit"
    return series.finish(), series.stopped


def search_settings(bench: Bench, ends: Ends, *, whole: bool, spent_s: float) -> SearchSettings:
    """Starting point and limits of the search.

    Args:
        spent_s: on the short runs before it.
    """
    flags = bench.flags
    of_full = _OF_FULL_IN_TIME if flags.within else _OF_FULL
    first = max(1.0, round(ends.full_per_s * ends.idle_s)) if whole else _three_digits(of_full * ends.full_per_s)
    return SearchSettings(
        target=flags.attainment,
        first=min(first, _LARGEST_CONCURRENCY) if whole else first,
        smallest=1.0 if whole else _three_digits(first / 2**_OCTAVES_DOWN),
        largest=_LARGEST_CONCURRENCY if whole else None,
        whole=whole,
        least_requests=flags.probe_requests,
        least_duration_s=flags.duration or SearchSettings().least_duration_s,
        most_probes=flags.max_probes,
        growth=_GROWTH_IN_TIME if flags.within else SearchSettings().growth,
        within_s=max(1.0, flags.within - spent_s) if flags.within else math.inf,
    )


def _three_digits(value: float) -> float:
    return float(f"{value:.3g}")


def forecast_words(bench: Bench, settings: SearchSettings, ends: Ends) -> str:
    """Starting point, expected duration and longest duration of the search."""
    seconds = functools.partial(probe_s, bench, ends=ends)
    if bench.flags.within:
        return (
            f"The full server does about {numbers.significant(ends.full_per_s)} requests/s. The search begins at "
            f"{load_text(bench.flags.find_max, settings.first)} and ends within {_roughly(bench.flags.within)}."
        )
    likely = ends.full_per_s * (ends.idle_s if settings.whole else 0.8)
    about, most = saturation.expected_s(settings, seconds, likely), saturation.longest_s(settings, seconds)
    return (
        f"The full server does about {numbers.significant(ends.full_per_s)} requests/s. The search begins at "
        f"{load_text(bench.flags.find_max, settings.first)} and takes about {_roughly(about)}, at most "
        f"{_roughly(max(about, most))} ({settings.most_probes} probes)."
    )


def probe_s(bench: Bench, probe: Probe, *, ends: Ends) -> float:
    """Duration of a probe with its pauses and repetitions [s], estimated from the measured `ends`."""
    flags = bench.flags
    rate = probe.value if flags.find_max == "rate" else min(probe.value / ends.idle_s, ends.full_per_s)
    each_s = probe.requests / rate + min(ends.full_s, flags.drain) + flags.pause
    return float(each_s * flags.repeats)


def _ends(bench: Bench, series: SweepSeries, *, whole: bool) -> Ends:
    """Measure the starting point of a search with short runs that are not reported.

    Raises: UsageError if no request succeeded; KeyboardInterrupt, LoadgenError as `short_run`.
    """
    requests = _FULL_REQUESTS_IN_TIME if bench.flags.within else FULL_REQUESTS
    full = short_run(bench, series, bench.load(slots=requests), requests, "full server")
    latency = full.metrics.get("e2e_sent")
    if not (latency and latency.mean):
        raise UsageError("no request succeeded in the first short run; see what `loadgen run --concurrency 64` says")
    if not whole:
        return Ends(full.throughput.requests_per_s, latency.mean)
    idle = short_run(bench, series, bench.load(slots=1), IDLE_REQUESTS, "idle server").metrics.get("e2e_sent")
    return Ends(full.throughput.requests_per_s, latency.mean, (idle and idle.mean) or latency.mean)


def _roughly(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def _say(bench: Bench, text: str) -> None:
    """One line on the search, unless it is to be quiet. Effects: writes to the console."""
    if not bench.flags.quiet:
        bench.console.print(Text(text), soft_wrap=True)


def _probe_words(bench: Bench, probe: Probe, ends: Ends) -> str:
    again = " again" if probe.repeat else ""
    took = _roughly(probe_s(bench, probe, ends=ends))
    return f"{load_text(bench.flags.find_max, probe.value)}{again}, {probe.requests:,} requests, about {took}"


def _outcome_words(settings: SearchSettings, results: list[ProbeResult]) -> str:
    """Outcome of the last probe, with those of the same value before it."""
    last = results[-1]
    group = [result for result in results if result.value == last.value]
    good, counted = sum(result.good for result in group), sum(result.counted for result in group)
    state = {
        Verdict.HOLDS: "holds", Verdict.FAILS: "does not hold", Verdict.OPEN: "not clear yet",
    }[saturation.verdict(settings, group)]  # fmt: skip
    why = last.overloaded or last.held_back
    low, high = saturation.bracket_of(settings, results)
    between = f"; the limit is between {low:g} and {high:g}" if low is not None and high is not None else ""
    return f"{state}: {good:,} of {counted:,} within the SLOs{f'; {why}' if why else ''}{between}"


class _Backlog:
    """Ends a probe of a rate early when requests pile up beyond doubt."""

    def __init__(self, rate_per_s: float, requests: int) -> None:
        self._rate_per_s = rate_per_s
        self._looks = list(backlog.look_times(requests / rate_per_s))
        self._times_s: list[float] = []
        self._running: list[float] = []

    def __call__(self, progress: Progress) -> str:
        """The reason to end the probe early, since requests pile up; empty while there is none.

        It is checked at planned times, the last time once all requests were sent, which may be a little early or late.
        """
        if progress.now_s <= 0 or not self._looks:
            return ""
        if not progress.draining:
            self._times_s.append(progress.now_s)
            self._running.append(progress.running + progress.waiting)
            if progress.now_s < self._looks[0]:
                return ""
        self._looks = [] if progress.draining else self._looks[1:]
        return backlog.running_grows(self._times_s, self._running, self._rate_per_s)


def _probe_result(value: float, finished: Finished, took_s: float) -> ProbeResult:
    """Figures of a probe that a search needs."""
    slo, generator = finished.result.slo, finished.result.generator
    # A busy machine proves nothing about the server, unless it delayed the load.
    too_busy = generator.machine_was_busy and not finished.aborted and not kept_rate(generator)
    own = "the load generator was at its limit" if generator.is_bottleneck else ""
    return ProbeResult(
        value=value,
        good=slo.good if slo else 0,
        counted=slo.counted if slo else 0,
        overloaded=finished.aborted,
        held_back=own or ("the machine of the load generator was too busy" if too_busy else ""),
        took_s=took_s,
    )


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
    console = terminal_console(stderr=flags.json, soft_wrap=True)
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
    what = bench.flags.find_max
    if what and result.best is not None:
        _say(bench, f"The largest {what} that held the SLOs: {load_text(what, result.best)}.")
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
    """Exit code."""
    if stopped:
        return stopped
    failed = sum(count for result in results for name, count in result.outcomes.items() if name in FAILURES)
    failed += sum(result.contradictions for result in results)
    counted = sum(count for result in results for name, count in result.outcomes.items() if name not in NOT_COUNTED)
    if counted == 0 or failed / counted > bench.flags.max_failure_share:
        return ExitCode.REQUESTS
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
