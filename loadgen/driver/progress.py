"""Progress of a run, and the generator's own performance; plain values for terminal and verdict.

None of it is used for a reported metric of the server: those come from the records.
"""

import msgspec

from loadgen.record import FAILURES, RequestOutcome


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """The run at one moment, all workers together.

    Attributes:
        now_s: run time; negative before the start.
        sent, finished: requests (warm-up included). running: open now. waiting: due, but held back by the cap.
        outcomes: `RequestOutcome` -> count of finished ones; only those that occurred.
        tokens: content chunks received so far, also of requests that are still open (about one token each).
        tokens_per_s: the same, per second of the last `WINDOW_S`.
        sent_per_s, finished_per_s: requests per second of the last `WINDOW_S`.
        ttft_s, tpot_s: means over requests that finished in the last `WINDOW_S`; TTFT from the intended time. None if
            there were none.
        lateness_p99_s: `started - released` of the requests sent in the last `WINDOW_S`; None if there were none.
        draining: no conversation starts any more (duration over, stopped, or jobs used up); open ones are awaited.
        workers: processes alive.
    """

    now_s: float
    sent: int = 0
    finished: int = 0
    running: int = 0
    waiting: int = 0
    outcomes: dict[RequestOutcome, int] = {}
    tokens: int = 0
    tokens_per_s: float = 0.0
    sent_per_s: float = 0.0
    finished_per_s: float = 0.0
    ttft_s: float | None = None
    tpot_s: float | None = None
    lateness_p99_s: float | None = None
    draining: bool = False
    workers: int = 1

    @property
    def failed(self) -> dict[RequestOutcome, int]:
        """The failures among `outcomes`."""
        return {outcome: count for outcome, count in self.outcomes.items() if outcome in FAILURES}


WINDOW_S = 5.0
"""Time window of the recent figures of `Progress` [s]."""


class WorkerHealth(msgspec.Struct, frozen=True, kw_only=True):
    """How well one worker process kept up, over the whole run.

    Attributes:
        worker: its number, as in the records. sent: requests.
        cpu_share: CPU time of the process / wall time, 1.0 = one core busy all the time.
        loop_lag_p50_s, loop_lag_p99_s, loop_lag_max_s: how late its own timer fired, which beat every 20 ms.
        lateness_p50_s, lateness_p99_s, lateness_max_s: `started - released` of its requests.
        starved_s: time for which it could have sent (closed loop: a slot was free, summed over slots; open loop: a
            job was due) and no job had reached it.
        gc_pause_max_s: longest pause by the garbage collector.
        late_digests: responses that were interpreted immediately because the backlog was full, delaying other work that
        was due; above 0 the process received more than it could evaluate. cpu_s: CPU time of the process. late_s:
        lateness of its late timers, summed. denied_s: part of it for which the process had no core to run on.
    """

    worker: int
    sent: int = 0
    cpu_share: float = 0.0
    loop_lag_p50_s: float = 0.0
    loop_lag_p99_s: float = 0.0
    loop_lag_max_s: float = 0.0
    lateness_p50_s: float = 0.0
    lateness_p99_s: float = 0.0
    lateness_max_s: float = 0.0
    starved_s: float = 0.0
    gc_pause_max_s: float = 0.0
    late_digests: int = 0
    cpu_s: float = 0.0
    late_s: float = 0.0
    denied_s: float = 0.0


class MachineUse(msgspec.Struct, frozen=True, kw_only=True):
    """Work of a machine's cores during a run, as averages [cores].

    Attributes:
        cores: that it has. others_cores: busy with other programs. stolen_cores: taken by a virtual machine's host.
    """

    cores: int
    others_cores: float
    stolen_cores: float = 0.0


class ClockSample(msgspec.Struct, frozen=True, kw_only=True):
    """Three clocks at one moment [s]: a jump of `realtime_s` or of `boottime_s` against `monotonic_s` is clock trouble.

    `boottime_s` advances during system sleep, `monotonic_s` does not; None where the system has no such clock.
    """

    monotonic_s: float
    realtime_s: float
    boottime_s: float | None


class FleetReport(msgspec.Struct, frozen=True, kw_only=True):
    """Facts about a finished run besides its records.

    Attributes:
        t0: `time.monotonic()` at run time 0. started_at_unix: the same moment on the wall clock [s since 1970].
        duration_s: from run time 0 to the end of the last request (or to the loss of the last worker).
        sending_ended_s: run time at which the last request left; 0 if none did.
        workers: health of those that lived to the end, ascending. lost_workers: numbers of those that did not.
        jobs: handed to workers. requests: sent by them (later turns count as well).
        interrupted: stopped early: by `stop`, by a lost worker or because the jobs could not be drawn to the end.
        problems: why, one line each; a plain interruption by the user needs none.
        clocks: at the start, each second, and at the end.
        machine: what its cores did; None where the system does not report it.
        drawing_cpu_s, drawing_waited_s: for drawing the jobs: CPU time, and time without a core (0 where the system
        does not report it).
    """

    t0: float
    started_at_unix: float
    duration_s: float
    sending_ended_s: float = 0.0
    workers: list[WorkerHealth] = []
    lost_workers: list[int] = []
    jobs: int = 0
    requests: int = 0
    interrupted: bool = False
    problems: list[str] = []
    clocks: list[ClockSample] = []
    machine: MachineUse | None = None
    drawing_cpu_s: float = 0.0
    drawing_waited_s: float = 0.0
