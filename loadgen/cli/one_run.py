"""One run from the first job to the summary: the driver sends, records are kept, metrics are made."""

import contextlib
import datetime
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from urllib.parse import urlsplit

from loadgen.cli.bench import Bench
from loadgen.cli.build_load import LoadSchedule
from loadgen.cli.build_workload import Content
from loadgen.driver.fleet import Fleet
from loadgen.driver.messages import DriveSettings, Mode
from loadgen.driver.progress import FleetReport, Progress
from loadgen.errors import UsageError
from loadgen.exit_codes import ExitCode
from loadgen.metrics.samples import SAMPLES, samples
from loadgen.metrics.summary import summarize
from loadgen.metrics.verdict import GeneratorFacts, Identity
from loadgen.plan import LoadJob
from loadgen.record import RequestRecord
from loadgen.result import RunResult, TextSample
from loadgen.run_folder import RunFolder
from loadgen.run_report.live import LiveProgress
from loadgen.server.scrape import Scraper, metrics_url
from loadgen.server.series import ServerSeries, npus, write_series
from loadgen.trace.jobs import with_npus
from loadgen.workload.plan_jobs import plan_jobs

# A run's jobs on their way to the driver, and what is known of the whole plan while it is drawn.


class Schedule:
    """Passes jobs on; counts their requests and records their arrival rate.

    Args:
        count: conversations requested, including warm-ups; None = as many as there are.
    """

    def __init__(self, jobs: Iterator[LoadJob], count: int | None = None) -> None:
        self._jobs = jobs
        self._count = count
        self._conversations = self._requests = 0
        self._whole = False
        self.measured = 0
        """Conversations drawn that are no warm-ups."""
        self._timed = 0
        self._first_s = self._last_s = 0.0

    def __iter__(self) -> Iterator[LoadJob]:
        for job in self._jobs:
            self._conversations += 1
            self._requests += len(job.conversation.turns)
            self.measured += not job.warmup
            if job.due_s is not None and not job.warmup:
                self._first_s = self._first_s if self._timed else job.due_s
                self._last_s = job.due_s
                self._timed += 1
            yield job
        self._whole = True

    @property
    def requests(self) -> int | None:
        """Requests of the plan, warm-ups and later turns included; None if the total is unknown.

        Exact once all jobs are drawn; until then the remaining ones are assumed to have as many turns as those drawn.
        """
        if self._whole:
            return self._requests
        if self._count is None:
            return None
        turns = self._requests / self._conversations if self._conversations else 1.0
        return self._requests + round((self._count - self._conversations) * turns)

    @property
    def missing(self) -> int:
        """Requested conversations that the workload did not provide, once it is exhausted."""
        return 0 if self._count is None or not self._whole else self._count - self._conversations

    @property
    def offered_per_s(self) -> float | None:
        """Rate of the measured part of the schedule as it was drawn; None if it has no extent."""
        span_s = self._last_s - self._first_s
        return (self._timed - 1) / span_s if self._timed > 1 and span_s > 0 else None


# One run from the first job to the summary: the driver sends, records are kept, metrics are made.

Watch = Callable[[Progress], str]
"""Receives the run's progress; a non-empty result ends the run early and is the reason."""


@dataclass(frozen=True)
class Measured:
    """One run.

    Attributes:
        aborted: why a watch stopped it early, else empty.
        stopped: exit code if it was stopped otherwise, by the user or by an error of ours; else 0.
    """

    result: RunResult
    records: list[RequestRecord]
    series: ServerSeries | None
    aborted: str = ""
    stopped: int = 0


def run_once(
    bench: Bench, load: LoadSchedule, *, seed: int, folder: Path | None, label: str = "", watch: Watch | None = None
) -> Measured:
    """Make one run and sum it up; what was measured before an interruption is kept.

    Args:
        folder: where its files go; None = nowhere.
    Raises: UsageError, TraceFormatError for a workload that cannot be drawn; OutputError; WorkerLost.
    Effects: sends requests; starts and ends processes; writes the folder's lines as requests end.
    """
    flags = bench.flags
    records: list[RequestRecord] = []
    stop, cut = threading.Event(), threading.Event()
    aborted: list[str] = []
    taken: list[TextSample] = []
    settings = _drive_settings(bench, load)
    scraper = _start_scraper(bench)
    content = bench.content_of(seed)
    planned = None if load.conversations is None else load.conversations + flags.num_warmups
    schedule = Schedule(_jobs(bench, content, load, seed), planned)
    with contextlib.ExitStack() as stack:
        files = stack.enter_context(RunFolder(folder)) if folder else None
        live = stack.enter_context(_live(bench, load, schedule, label or load.label))
        stack.enter_context(stop_on_signals(stop, cut))
        if scraper:
            stack.callback(scraper.stop)

        def keep(ended: list[RequestRecord]) -> None:
            if settings.sampled_below:
                _take_samples(taken, ended, texts_stay=settings.keep_text)
            records.extend(ended)
            if files:
                files.append(ended)

        def show(progress: Progress) -> None:
            live.update(progress)
            why = watch(progress) if watch and not stop.is_set() else ""
            if why:
                aborted.append(why)
                stop.set()
                cut.set()

        fleet = Fleet(settings)
        report = fleet.run(iter(schedule), on_records=keep, on_progress=show, stop=stop, cut=cut)
    if not records and not report.interrupted:
        raise UsageError("the workload had nothing to send; see --dataset-path, --trace-from, --trace-to")
    cut_short = [*_too_few(load, schedule), *content.fit.tally.warnings()]
    result = _summary(bench, load, records, report, schedule, scraper, cut_short, seed=seed, label=label)
    result.samples = sorted(taken, key=lambda sample: sample.index)
    if aborted:
        result.warnings = []  # the reason alone describes a run ended by a watch
    series = _kept_series(scraper, report.t0, folder)
    result.npus = flags.npus or (npus(series) if series else None)
    result.jobs = with_npus(result.jobs, result.npus, result.duration_s)
    if aborted or not report.interrupted:
        return Measured(result, records, series, aborted[0] if aborted else "")
    stopped = ExitCode.FAILURE if report.problems else ExitCode.INTERRUPTED
    return Measured(result, records, series, stopped=stopped)


def _live(bench: Bench, load: LoadSchedule, schedule: Schedule, label: str) -> LiveProgress:
    """The progress view of a running load."""
    return LiveProgress(
        bench.console,
        total=lambda: schedule.requests,
        duration_s=load.duration_s,
        label=label,
        quiet=bench.flags.quiet,
    )


def _kept_series(scraper: Scraper | None, t0: float, folder: Path | None) -> ServerSeries | None:
    """The server's own metrics, if enabled. Effects: writes them into the folder. Raises: OutputError."""
    series = scraper.series(t0) if scraper else None
    if folder and series and series.times_s:
        write_series(folder, series)
    return series


def _take_samples(taken: list[TextSample], ended: list[RequestRecord], *, texts_stay: bool) -> None:
    """Take what is missing of the samples; records keep their texts only if requested."""
    if len(taken) < SAMPLES:
        taken.extend(samples(ended)[: SAMPLES - len(taken)])
    for record in ended:
        record.text = record.text if texts_stay else None


def _jobs(bench: Bench, content: Content, load: LoadSchedule, seed: int) -> Iterator[LoadJob]:
    """The plan of one run."""
    return plan_jobs(
        content.workload,
        seed=seed,
        arrivals=load.arrivals,
        behaviours=bench.behaviours,
        warmups=bench.flags.num_warmups,
        count=load.conversations,
        duration_s=load.duration_s if load.duration_s is not None and load.arrivals is not None else float("inf"),
    )


def _too_few(load: LoadSchedule, schedule: Schedule) -> list[str]:
    """A warning if the data set had fewer than `--num-prompts` conversations; none with a duration."""
    if not schedule.missing or load.duration_s is not None:
        return []
    return [
        f"--num-prompts asked for {load.conversations} conversations, but the data set has only {schedule.measured}"
    ]


def _drive_settings(bench: Bench, load: LoadSchedule) -> DriveSettings:
    """How the driver sends."""
    flags = bench.flags
    closed = load.arrivals is None
    # An open loop's plan ends by itself, and its warm-up does not count; the driver's clock would include that.
    plan_ends = not closed and flags.num_warmups > 0
    return DriveSettings(
        endpoint=bench.endpoint,
        mode=Mode.CLOSED if closed else Mode.OPEN,
        concurrency=load.concurrency,
        duration_s=None if plan_ends else load.duration_s,
        drain_s=flags.drain,
        workers=flags.workers,
        request_timeout_s=flags.request_timeout,
        connect_timeout_s=flags.connect_timeout,
        keep_body=bool(flags.out) and flags.save_prompts,
        keep_text=flags.save_detailed,
        sampled_below=flags.num_warmups + SAMPLES if flags.out and flags.save_prompts and flags.sample_texts else 0,
        concurrency_ramp_s=flags.concurrency_ramp,
    )


def _start_scraper(bench: Bench) -> Scraper | None:
    """The scraper of the server's metrics, if enabled."""
    flags, endpoint = bench.flags, bench.endpoint
    if not flags.scrape:
        return None
    url = flags.metrics_url or metrics_url(endpoint.base_url)
    # Keys are for the server under test; a /metrics on another host gets none.
    headers = endpoint.headers if urlsplit(url).hostname == urlsplit(endpoint.base_url).hostname else []
    scraper = Scraper(url, headers, verify_tls=endpoint.verify_tls)
    scraper.start()
    return scraper


def _summary(
    bench: Bench,
    load: LoadSchedule,
    records: list[RequestRecord],
    report: FleetReport,
    schedule: Schedule,
    scraper: Scraper | None,
    cut_short: list[str],
    *,
    seed: int,
    label: str,
) -> RunResult:
    """All figures of a run."""
    flags = bench.flags
    workers, machine = report.workers, report.machine
    facts = GeneratorFacts(
        workers=len(workers) + len(report.lost_workers),
        cpu_share=max((worker.cpu_share for worker in workers), default=0.0),
        loop_lag_p99_s=max((worker.loop_lag_p99_s for worker in workers), default=0.0),
        starved_s=sum(worker.starved_s for worker in workers),
        late_s=sum(worker.late_s for worker in workers),
        denied_s=sum(worker.denied_s for worker in workers),
        drawing_cpu_s=report.drawing_cpu_s,
        drawing_waited_s=report.drawing_waited_s,
        cores=machine.cores if machine else None,
        others_cores=machine.others_cores if machine else None,
        stolen_cores=machine.stolen_cores if machine else None,
        late_digests=sum(worker.late_digests for worker in workers),
        offered_per_s=schedule.offered_per_s,
        clocks=[(clock.monotonic_s, clock.realtime_s, clock.boottime_s) for clock in report.clocks],
        interrupted=report.interrupted,
        lost_workers=report.lost_workers,
        problems=report.problems,
        cap=load.concurrency,
        mode_closed=load.arrivals is None,
    )
    identity = Identity(
        version=metadata.version("cloudmatrix-infer"),
        started_at=datetime.datetime.fromtimestamp(report.started_at_unix, datetime.UTC).isoformat(timespec="seconds"),
        command=bench.command(),
        label=label or load.label,
        url=bench.endpoint.base_url,
        model=bench.endpoint.model,
        endpoint=bench.endpoint.path,
        seed=seed,
        settings=bench.settings(),
        metadata=dict(flags.metadata),
    )
    problem = scraper.problem() if scraper else ""
    warnings = [*bench.warnings, *cut_short, *([problem] if problem else [])]
    return summarize(
        records,
        facts=facts,
        slo=bench.slo or None,
        percentiles=flags.metric_percentiles,
        identity=identity,
        warnings=warnings,
    )


# Ctrl-C, in two steps: the first ends sending, the second ends waiting.


@contextlib.contextmanager
def stop_on_signals(stop: threading.Event, cut: threading.Event) -> Iterator[None]:
    """While this lasts, the first SIGINT or SIGTERM sets `stop`, the second one `cut`.

    Effects: changes the handlers of this process; only the main thread may do that, any other is left as it is.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(_number: int, _frame: object) -> None:
        if stop.is_set():
            cut.set()
        stop.set()

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
