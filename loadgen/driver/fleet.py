"""The main process's side of a run: starts the workers together, feeds them, collects what they did, ends them.

Order of events: all workers start while the first jobs are drawn; when each has rendered its first supply they get a
common run time 0 a little ahead; jobs and records are then exchanged until every worker has reported completion.
Whatever fails, no process outlives `run`, and records that had arrived have been delivered.
"""

import contextlib
import secrets
import selectors
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from loadgen.driver.feeder import Feeder
from loadgen.driver.loops import OPEN_DEPTH, first_depth
from loadgen.driver.machine import ClockLog, MachineLog
from loadgen.driver.messages import (
    Credit,
    Cut,
    DriveSettings,
    EndSending,
    FromWorker,
    Mode,
    RequestEnded,
    Setup,
    StartRun,
    Tick,
    ToWorker,
    WorkerDone,
    WorkerFailed,
    WorkerReady,
)
from loadgen.driver.meter import Meter
from loadgen.driver.progress import FleetReport, Progress
from loadgen.driver.worker_process import BOOT, WorkerProcess
from loadgen.errors import UsageError, WorkerLost
from loadgen.plan import LoadJob
from loadgen.record import RequestRecord

OnRecords = Callable[[list[RequestRecord]], None]
OnProgress = Callable[[Progress], None]

LEAD_S = 0.15
"""Between the order to start and run time 0: workers freeze their heaps and load TLS certificates in it."""
_ASLEEP_S = 2.0
"""If this process itself has not run for this long (Ctrl-Z, for instance), the workers' silence is not a failure."""
_TICK_S = 0.1
_WAIT_S = 0.05


@dataclass(frozen=True, slots=True)
class FleetLimits:
    """Time limits of workers.

    Attributes:
        ready_s: until all have started. silence_s: a worker without a message for so long is considered hung (it ticks
        ten times a second). grace_s: for evaluating and delivering requests still open after the end.
    """

    ready_s: float = 60.0
    silence_s: float = 30.0
    grace_s: float = 15.0


class Fleet:
    """Worker processes for one run; used once."""

    def __init__(self, settings: DriveSettings, limits: FleetLimits | None = None, boot: str = BOOT) -> None:
        """Check the settings; no process is started yet.

        Args:
            boot: program of a worker.
        Raises: UsageError.
        """
        settings.check()
        self._settings = settings
        self._limits = limits or FleetLimits()
        self._boot = boot
        self._workers: list[WorkerProcess] = []
        self._ready: set[int] = set()
        self._done: dict[int, WorkerDone] = {}
        self._lost: dict[int, str] = {}
        self._failed: dict[int, WorkerFailed] = {}
        self._heard_s: dict[int, float] = {}
        self._problems: list[str] = []
        self._meter = Meter()
        self._clocks = ClockLog()
        self._machine = MachineLog()
        self._selector = selectors.DefaultSelector()
        self._records: list[RequestRecord] = []
        self._t0 = 0.0
        self._lost_at_s = 0.0
        self._deadline_s = float("inf")
        self._ending = False
        self._cutting = False
        self._progress_s = 0.0
        self._awake_s = 0.0

    def run(
        self,
        jobs: Iterator[LoadJob],
        *,
        on_records: OnRecords,
        on_progress: OnProgress,
        stop: threading.Event | None = None,
        cut: threading.Event | None = None,
    ) -> FleetReport:
        """Send the jobs, deliver every record, and end every process.

        Both callbacks run in the calling thread; `on_progress` about ten times a second. `jobs` is drawn in another
        thread, ahead of time, and may be endless if `duration_s` is set; an open loop's jobs ascend by `due_s`.

        Args:
            stop: once set, no request leaves any more; open ones get `drain_s`.
            cut: once set, open requests are cut at once (UNFINISHED). `stop_on_signals` sets the two.
        Raises: WorkerLost if a worker cannot be started; UsageError if a first job does not fit the endpoint; what
            `jobs` raises before the first request was due; what a callback raises.
        Effects: starts processes and ends them before it returns or raises.
        """
        stop, cut = stop or threading.Event(), cut or threading.Event()
        feeder: Feeder | None = None
        try:
            self._start_workers()
            feeder = Feeder(jobs, self._settings, self._workers)
            feeder.start()
            self._await_ready(feeder, stop, cut)
            if not (stop.is_set() or cut.is_set()):
                self._send_start()
                while len(self._done) + len(self._lost) < len(self._workers):
                    self._step(feeder, on_records, on_progress, stop, cut)
                on_progress(self._progress(feeder, time.monotonic()))
            return self._report(feeder, interrupted=stop.is_set() or cut.is_set())
        finally:
            self._end_all(feeder)

    def _start_workers(self) -> None:
        """Raises: WorkerLost."""
        run_id = f"lg-{secrets.token_hex(4)}"
        for number in range(self._settings.workers_used()):
            openings_s = self._settings.slot_openings_s(number)
            depth = OPEN_DEPTH if self._settings.mode is Mode.OPEN else first_depth(len(openings_s))
            worker = WorkerProcess(number, depth, self._boot)
            self._workers.append(worker)
            self._selector.register(worker, selectors.EVENT_READ, worker)
            slots = self._settings.slots_of(number)
            setup = Setup(
                settings=self._settings, worker=number, slots=slots, slot_openings_s=openings_s, run_id=run_id
            )
            worker.send(setup)

    def _await_ready(self, feeder: Feeder, stop: threading.Event, cut: threading.Event) -> None:
        """Until every worker has rendered its first jobs. Drawing them may take as long as it likes.

        Raises: WorkerLost, UsageError, or what the jobs raised.
        """
        deadline_s = float("inf")
        while len(self._ready) < len(self._workers) and not (stop.is_set() or cut.is_set()):
            self._receive(feeder)
            if feeder.error is not None:
                raise feeder.error
            for number, why in self._lost.items():
                failed = self._failed.get(number)
                if failed is not None and failed.usage:
                    raise UsageError(failed.text)
                raise WorkerLost(f"worker {number} did not start: {why}")
            if feeder.prepared:
                deadline_s = min(deadline_s, time.monotonic() + self._limits.ready_s)
            if time.monotonic() > deadline_s:
                missing = sorted({worker.number for worker in self._workers} - self._ready)
                raise WorkerLost(f"workers {missing} were not ready within {self._limits.ready_s:g} s")
        if feeder.error is not None:
            raise feeder.error

    def _send_start(self) -> None:
        """Give all workers the same run time 0."""
        self._t0 = time.monotonic() + LEAD_S
        self._machine = MachineLog()  # from now on: the start of workers does not count
        self._tell_all(StartRun(self._t0))
        if self._settings.duration_s is not None:
            self._deadline_s = self._t0 + self._settings.duration_s + self._settings.drain_s + self._limits.grace_s
        self._heard_s = {worker.number: self._t0 for worker in self._workers}

    def _step(
        self,
        feeder: Feeder,
        on_records: OnRecords,
        on_progress: OnProgress,
        stop: threading.Event,
        cut: threading.Event,
    ) -> None:
        """Receive, deliver, and handle pending events."""
        self._receive(feeder)
        now_s = time.monotonic()
        self._clocks.tick(now_s)
        if self._records:
            records, self._records = self._records, []
            on_records(records)
        if now_s >= self._progress_s:
            self._progress_s = now_s + _TICK_S
            on_progress(self._progress(feeder, now_s))
        if (stop.is_set() or cut.is_set() or self._lost) and not self._ending:
            self._ending = True
            feeder.stop()
            self._tell_all(EndSending())
            self._deadline_s = min(self._deadline_s, now_s + self._settings.drain_s + self._limits.grace_s)
        if cut.is_set() and not self._cutting:
            self._cutting = True
            self._tell_all(Cut())
            self._deadline_s = min(self._deadline_s, now_s + self._limits.grace_s)
        self._end_hanging(now_s)

    def _end_hanging(self, now_s: float) -> None:
        """Kill those that are silent, or that outlast every deadline."""
        if now_s - self._awake_s > _ASLEEP_S:
            self._heard_s = dict.fromkeys(self._heard_s, now_s)
        self._awake_s = now_s
        for worker in self._alive():
            silent = now_s - self._heard_s[worker.number] > self._limits.silence_s
            if silent or now_s > self._deadline_s:
                worker.lost = worker.lost or ("stopped responding" if silent else "did not end in time")
            if worker.lost:
                worker.kill()

    def _receive(self, feeder: Feeder) -> None:
        """Receive messages of the workers, waiting briefly for them."""
        for key, _ in self._selector.select(_WAIT_S):
            worker: WorkerProcess = key.data
            messages = worker.receive()
            for message in messages or ():
                self._handle(worker, message)
            if messages is None:
                self._selector.unregister(worker)
                if worker.number not in self._done:
                    self._lose(worker)
            self._heard_s[worker.number] = time.monotonic()
        feeder.wake()

    def _handle(self, worker: WorkerProcess, message: FromWorker) -> None:
        match message:
            case RequestEnded(record):
                self._records.append(record)
            case Tick():
                self._meter.add(worker.number, message, time.monotonic() - self._t0)
            case Credit(taken, depth):
                worker.note_credit(taken, depth)
            case WorkerReady():
                self._ready.add(worker.number)
            case WorkerDone():
                self._done[worker.number] = message
            case WorkerFailed():
                self._failed[worker.number] = message

    def _lose(self, worker: WorkerProcess) -> None:
        """A worker hung up before it was done."""
        ending = worker.end()
        failed = self._failed.get(worker.number)
        why = failed.text if failed is not None else worker.lost or ending
        worker.lost = why
        self._lost[worker.number] = why
        self._lost_at_s = time.monotonic() - self._t0
        self._meter.forget(worker.number)
        self._problems.append(f"worker {worker.number} was lost ({why}); what it had delivered is kept")

    def _progress(self, feeder: Feeder, now_s: float) -> Progress:
        duration_s = self._settings.duration_s
        over = duration_s is not None and now_s - self._t0 >= duration_s
        all_begun = not feeder.is_alive() and not any(worker.unstarted for worker in self._workers)
        draining = self._ending or over or all_begun
        return self._meter.progress(now_s - self._t0, draining=draining, workers=len(self._alive()))

    def _alive(self) -> list[WorkerProcess]:
        return [w for w in self._workers if w.number not in self._lost and w.number not in self._done]

    def _tell_all(self, message: ToWorker) -> None:
        for worker in self._alive():
            worker.send(message)

    def _report(self, feeder: Feeder, *, interrupted: bool) -> FleetReport:
        if feeder.error is not None:
            self._problems.append(f"the jobs stopped early: {feeder.error}")
        wall_s, monotonic_s = time.time(), time.monotonic()
        t0 = self._t0 or monotonic_s  # interrupted before the start
        done = [self._done[number] for number in sorted(self._done)]
        return FleetReport(
            t0=t0,
            started_at_unix=wall_s - (monotonic_s - t0),
            duration_s=max([self._lost_at_s, *(one.ended_s for one in done)]),
            sending_ended_s=max((one.sending_ended_s for one in done), default=0.0),
            workers=[one.health for one in done],
            lost_workers=sorted(self._lost),
            jobs=feeder.jobs,
            requests=self._meter.sent,
            interrupted=interrupted or bool(self._problems),
            problems=self._problems,
            clocks=self._clocks.close(),
            machine=self._machine.close(sum(one.health.cpu_s for one in done)),
            drawing_cpu_s=feeder.cpu_s,
            drawing_waited_s=feeder.waited_s,
        )

    def _end_all(self, feeder: Feeder | None) -> None:
        """Stop the feeder and all processes of this run."""
        if feeder is not None:
            feeder.stop()
        for worker in self._workers:
            if worker.number not in self._done:
                worker.kill()
        if feeder is not None and feeder.ident is not None:
            feeder.join(_TICK_S)  # it may be blocked in the source of jobs; it is stopped from drawing more
        for worker in self._workers:
            if worker.number not in self._lost:
                with contextlib.suppress(KeyError, ValueError):
                    self._selector.unregister(worker)
                worker.end()
        self._selector.close()
