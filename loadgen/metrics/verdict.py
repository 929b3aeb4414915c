"""Verdict on the measurement itself: did it measure the server, this program, or a machine that was busy?

Five signs show that times were disturbed: a worker's timer was late, requests left late, responses arrived faster than
they were interpreted, prompts were not ready in time, the offered rate was not kept. The cause follows from what the
program did at that time, never from the signs themselves:

    it filled a core (CPU share above `MOST_CPU_SHARE`)      the generator, with or without other programs
    it had no core for most of the time it was late          the machine was busy
    it had a core all that time, or it is unknown            the generator

"Had no core" is measured at each late beat of a worker's timer (`driver.health.denied_s`), and for prompts in the
thread that makes them (time in the queue for a core against time on one). Use of the cores by other programs is
reported too and decides no verdict: cores can be busy without any thread waiting.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

from loadgen.result import Generator, MetricDistribution

# Facts that a summary needs besides the records: settings of the run, and how the generator itself did.


@dataclass(frozen=True, kw_only=True)
class Identity:
    """Fields of `RunResult` that are handed through."""

    version: str = ""
    started_at: str = ""
    command: str = ""
    label: str = ""
    url: str = ""
    model: str = ""
    endpoint: str = ""
    seed: int = 0
    settings: dict[str, object] = field(default_factory=dict)
    metadata: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class GeneratorFacts:
    """Performance of the load generator, as measured by its driver.

    Attributes:
        workers: processes. cpu_share: the busiest one's CPU time / wall time. loop_lag_p99_s: the laggiest one's.
        starved_s: time for which a worker could have sent and had no job, summed over slots.
        late_s: lateness of the workers' late timers, summed. denied_s: part of it for which they had no core to run on.
        drawing_cpu_s, drawing_waited_s: for making prompts: CPU time, and time without a core.
        cores, others_cores, stolen_cores: of the machine; busy with other programs and taken by the host of a virtual
            machine, as averages. None where the system does not report it.
        late_digests: answers interpreted at once because too many were waiting, at the cost of later stamps.
        offered_per_s: rate of the schedule; None in a closed loop.
        clocks: (monotonic, realtime, boottime or None) during the run [s].
        problems: of the driver, one line each. cap: slots of a closed loop, or cap of an open one.
    """

    workers: int = 1
    cpu_share: float = 0.0
    loop_lag_p99_s: float = 0.0
    starved_s: float = 0.0
    late_s: float = 0.0
    denied_s: float = 0.0
    drawing_cpu_s: float = 0.0
    drawing_waited_s: float = 0.0
    cores: int | None = None
    others_cores: float | None = None
    stolen_cores: float | None = None
    late_digests: int = 0
    offered_per_s: float | None = None
    clocks: list[tuple[float, float, float | None]] = field(default_factory=list)
    interrupted: bool = False
    lost_workers: list[int] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    cap: int | None = None
    mode_closed: bool = False


# Verdict on the measurement itself: did it measure the server, this program, or a machine that was busy?

MOST_CPU_SHARE = 0.85
"""A single-threaded event loop above this share queues by itself."""
MOST_LAG_S = 0.005
MOST_LATENESS_S = 0.005
LEAST_LATENESS_SHARE = 0.05
"""Lateness below this share of the median TTFT changes no conclusion."""
MOST_STARVED_SHARE = 0.01
LEAST_RATE_SHARE = 0.98
MOST_DENIED_SHARE = 0.5
"""Without a core for more of its lateness than this, a worker would have been in time on a free machine."""
MOST_SLEEP_S = 0.5
MOST_CLOCK_STEP_S = 0.5
_MORE_WORKERS = "raise --workers, or use a machine with free cores"
_MORE_CORES = "leave the generator a core, or run it on another machine"


def judge(
    facts: GeneratorFacts,
    *,
    duration_s: float,
    achieved_per_s: float | None,
    lateness: MetricDistribution | None,
    client_queue: MetricDistribution | None,
    ttft: MetricDistribution | None,
) -> Generator:
    """The verdict with its reasons.

    Args:
        duration_s: of the measured window. achieved_per_s: rate at which requests left; None in a closed loop.
    """
    denied = had_no_core(facts)
    disturbed = [
        *_lag(facts),
        *_overrun(facts),
        *_late(lateness, ttft),
        *_slow(facts, achieved_per_s, lateness, client_queue),
    ]
    starved, prompts_denied = _starved(facts, duration_s), facts.drawing_waited_s > facts.drawing_cpu_s
    busy = [*_full(facts), *([] if denied else disturbed)]
    own = [*busy, *([f"what helps: {_MORE_WORKERS}"] if busy else []), *([] if prompts_denied else starved)]
    foreign = [*(disturbed if denied else []), *(starved if prompts_denied else [])]
    return Generator(
        workers=facts.workers,
        cpu_share=facts.cpu_share,
        loop_lag_p99_s=facts.loop_lag_p99_s,
        starved_s=facts.starved_s,
        offered_per_s=facts.offered_per_s,
        achieved_per_s=achieved_per_s,
        is_bottleneck=bool(own),
        reasons=own,
        machine_was_busy=bool(foreign),
        machine_reasons=[*foreign, *([_others(facts)] if foreign else [])],
        denied_share=facts.denied_s / facts.late_s if facts.late_s > 0 else None,
        cores=facts.cores,
        others_cores=facts.others_cores,
        stolen_cores=facts.stolen_cores,
        clock_warnings=clock_warnings(facts.clocks),
    )


def had_no_core(facts: GeneratorFacts) -> bool:
    """Whether the workers were late because others had the cores; false for a worker that filled its own core."""
    return facts.cpu_share <= MOST_CPU_SHARE and facts.denied_s > MOST_DENIED_SHARE * facts.late_s


def kept_rate(generator: Generator) -> bool:
    """Whether the offered load really left; always, where no rate was offered."""
    offered, achieved = generator.offered_per_s, generator.achieved_per_s
    return offered is None or achieved is None or achieved >= LEAST_RATE_SHARE * offered


def _full(facts: GeneratorFacts) -> list[str]:
    return [f"a worker process used {facts.cpu_share:.0%} of a core"] if facts.cpu_share > MOST_CPU_SHARE else []


def _lag(facts: GeneratorFacts) -> list[str]:
    if facts.loop_lag_p99_s <= MOST_LAG_S:
        return []
    return [f"a worker's own timer fired {facts.loop_lag_p99_s * 1e3:.1f} ms late (99th percentile)"]


def _overrun(facts: GeneratorFacts) -> list[str]:
    if not facts.late_digests:
        return []
    return [f"{facts.late_digests} responses arrived faster than they could be parsed"]


def _late(lateness: MetricDistribution | None, ttft: MetricDistribution | None) -> list[str]:
    p99 = _percentile(lateness, 99)
    median = _percentile(ttft, 50)
    if p99 is None or p99 <= MOST_LATENESS_S or (median is not None and p99 < LEAST_LATENESS_SHARE * median):
        return []
    return [f"requests left {p99 * 1e3:.1f} ms late (99th percentile)"]


def _starved(facts: GeneratorFacts, duration_s: float) -> list[str]:
    slots = facts.cap or 1
    if duration_s <= 0 or facts.starved_s <= MOST_STARVED_SHARE * duration_s * slots:
        return []
    return [
        f"slots stood free for {facts.starved_s:.1f} s in all because prompts were not made fast enough; "
        "shorter prompts, or --tokenizer DIR instead of the server's, take less work"
    ]


def _slow(
    facts: GeneratorFacts,
    achieved: float | None,
    lateness: MetricDistribution | None,
    client_queue: MetricDistribution | None,
) -> list[str]:
    """A rate that was not kept although no cap held requests back.

    Not applied to a run that was stopped early: the few requests that left are then held against a longer schedule,
    whose random gaps have another mean.
    """
    offered = facts.offered_per_s
    if facts.interrupted or facts.lost_workers or offered is None or achieved is None:
        return []
    if achieved >= LEAST_RATE_SHARE * offered:
        return []
    waited = client_queue.max if client_queue and client_queue.max is not None else 0.0
    late = lateness.max if lateness and lateness.max is not None else 0.0
    if waited > late:
        return []
    return [f"only {achieved:.2f} of {offered:.2f} requests per second left"]


def _others(facts: GeneratorFacts) -> str:
    """Sentence on the others that had the cores, as far as it is known, and what to do."""
    if facts.cores is None or facts.others_cores is None:
        return f"what helps: {_MORE_CORES}"
    stolen = ""
    if facts.stolen_cores and facts.stolen_cores >= 0.01:
        stolen = f", and the host of this virtual machine took {facts.stolen_cores:.2f}"
    return (
        f"other programs (the server, if it runs here) used {facts.others_cores:.2f} of {facts.cores} cores{stolen}; "
        f"{_MORE_CORES}"
    )


def clock_warnings(clocks: Sequence[tuple[float, float, float | None]]) -> list[str]:
    """Warnings about clocks: the machine slept, or the time was set."""
    if len(clocks) < 2:
        return []
    found = []
    first, last = clocks[0], clocks[-1]
    if first[2] is not None and last[2] is not None:
        slept_s = (last[2] - first[2]) - (last[0] - first[0])
        if slept_s > MOST_SLEEP_S:
            found.append(
                f"the machine slept for {slept_s:.1f} s during the run: times across it are too short; repeat it"
            )
    steps = [(b[1] - a[1]) - (b[0] - a[0]) for a, b in itertools.pairwise(clocks)]
    step_s = max(steps, key=abs)
    if abs(step_s) > MOST_CLOCK_STEP_S and not found:
        found.append(
            f"the system clock was set by {step_s:+.1f} s during the run; latencies are right (another clock), "
            "times of day in server logs are not comparable"
        )
    return found


def _percentile(values: MetricDistribution | None, percentile: float) -> float | None:
    return next((value for p, value in values.curve if p == percentile), None) if values else None
