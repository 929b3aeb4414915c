"""Several runs in one command: the points of a series and their files, and a sweep over values."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

from loadgen.cli.bench import Bench
from loadgen.cli.build_load import LoadSchedule
from loadgen.cli.one_run import Watch, run_once
from loadgen.cli.repeated import Finished, rested, run_repeated
from loadgen.errors import LoadgenError, OutputError, UsageError, explained
from loadgen.exit_codes import ExitCode
from loadgen.result import RunResult, SweepPoint, SweepResult
from loadgen.run_folder import REPORT, SWEEP, write_json
from loadgen.run_report.report_file import write_report
from loadgen.search import sweep

SEEDS_APART = 1000
"""Between the points of a series, so that repetitions never share a seed."""
IDLE_REQUESTS = 8
"""Requests of the short run that sends one at a time."""
FULL_REQUESTS = 64
"""Requests of the short run that sends all at once."""


class SweepSeries:
    """Points measured so far, and their folder."""

    def __init__(self, bench: Bench, parameter: str) -> None:
        self.bench = bench
        self.result = SweepResult(parameter=parameter)
        self.stopped = 0
        self._seeds = 0

    def point(
        self, value: float, *, requests: int | None = None, make_watch: Callable[[], Watch] | None = None
    ) -> Finished:
        """Measure one value.

        Args:
            requests: overrides the flags.
        Raises: as `run_once`.
        """
        bench, number = self.bench, len(self.result.points) + 1
        load = self.load(value)
        if requests is not None:
            load = LoadSchedule(load.arrivals, load.concurrency, requests, None, load.rate_per_s, load.label)
        name = f"point-{number:02d}-{self.result.parameter}-{value:g}"
        folder = bench.flags.out / name if bench.flags.out else None
        finished = run_repeated(
            bench, load, seed=self.next_seed(), folder=folder, label=load.label, make_watch=make_watch
        )
        self.result.points.append(
            SweepPoint(value=value, folder=name, result=finished.result, aborted=finished.aborted)
        )
        self.stopped = finished.stopped
        return finished

    def pause(self) -> bool:
        """Let the server become idle between points; False if the user stops the series during the wait."""
        self.stopped = 0 if not self.result.points or rested(self.bench.flags.pause) else ExitCode.INTERRUPTED
        return not self.stopped

    def load(self, value: float) -> LoadSchedule:
        if self.result.parameter == "rate":
            return self.bench.load(rate=value)
        return self.bench.load(slots=round(value))

    def next_seed(self) -> int:
        """A seed that no other point of this series has."""
        self._seeds += 1
        return self.bench.seed + (self._seeds - 1) * SEEDS_APART

    @contextlib.contextmanager
    def kept(self) -> Iterator[None]:
        """Context that saves the points measured so far when the series is interrupted."""
        try:
            yield
        except BaseException as error:
            if self.result.points:
                self.result.explanation = f"ended early: {error}" if str(error) else "ended early"
                with contextlib.suppress(OutputError):
                    self.finish()
            raise

    def finish(self) -> SweepResult:
        """Order the points and write the files.

        Raises: OutputError.
        """
        self.result.points.sort(key=lambda point: point.value)
        out: Path | None = self.bench.flags.out
        if out:
            with explained(out):
                out.mkdir(parents=True, exist_ok=True)
            write_json(out / SWEEP, self.result)
            if self.bench.flags.report:
                write_report(out / REPORT, self.result)
        return self.result


def run_sweep(bench: Bench) -> tuple[SweepResult, int]:
    """One run for each value, ascending; those done are kept if the user stops it, or if one cannot be made.

    Returns: also the exit code if it was stopped early, else 0.
    Raises: as `run_once`.
    """
    series = SweepSeries(bench, bench.flags.sweep)
    whole = bench.flags.sweep == "concurrency"
    if bench.flags.sweep_values:
        values = sweep.explicit(bench.flags.sweep_values, whole=whole)
    else:
        values = _between_idle_and_full(bench, series, whole=whole)
    with series.kept():
        for value in values:
            if series.stopped or not series.pause():
                break
            series.point(value)
    result = series.result
    if bench.slo and result.points:
        _judge(result, bench.flags.attainment)
    return series.finish(), series.stopped


def _between_idle_and_full(bench: Bench, series: SweepSeries, *, whole: bool) -> list[float]:
    """Values between one request at a time and all at once, measured by two short runs that are not reported.

    Raises: UsageError if no request succeeded.
    """
    idle = short_run(bench, series, bench.load(slots=1), IDLE_REQUESTS, "idle server")
    full = short_run(bench, series, bench.load(slots=FULL_REQUESTS), FULL_REQUESTS, "full server")
    latency = idle.metrics.get("e2e_sent")
    if not (latency and latency.mean):
        raise UsageError("no request succeeded in the first short run; see what `loadgen run --concurrency 1` says")
    points: int = bench.flags.sweep_points
    if whole:
        return sweep.concurrencies(latency.mean, full.throughput.requests_per_s, points)
    return sweep.rates(1 / latency.mean, full.throughput.requests_per_s, points)


def short_run(bench: Bench, series: SweepSeries, load: LoadSchedule, requests: int, label: str) -> RunResult:
    """A run of few requests.

    Raises: KeyboardInterrupt if the user stops it, LoadgenError for a failure of the load generator; no reported result
        exists yet.
    """
    short = LoadSchedule(load.arrivals, load.concurrency, requests, None, load.rate_per_s, label)
    run = run_once(bench, short, seed=series.next_seed(), folder=None, label=label)
    if run.stopped == ExitCode.INTERRUPTED:
        raise KeyboardInterrupt
    if run.stopped:
        raise LoadgenError(f"the run {label!r}, ahead of the series, ended early: {'; '.join(run.result.warnings)}")
    return run.result


def _judge(result: SweepResult, target: float) -> None:
    """Determine which values of a sweep held the SLOs: all up to the first that did not."""
    for point in sorted(result.points, key=lambda point: point.value):
        if not point.result.slo or point.result.slo.attainment < target:
            result.first_failed = point.value
            break
        result.best = point.value
    held = "no value" if result.best is None else f"{result.parameter} {result.best:g}"
    failed = "" if result.first_failed is None else f"; {result.first_failed:g} did not"
    result.explanation = f"{held} held the SLOs for {target:.0%} of the requests{failed}"
