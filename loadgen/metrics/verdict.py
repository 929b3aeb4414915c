"""Verdict on the measurement itself: whether it measured the server or this program, and whether clocks were sound."""

import itertools
from collections.abc import Sequence

from loadgen.metrics.facts import GeneratorFacts
from loadgen.result import Generator, MetricDistribution

MOST_CPU_SHARE = 0.85
"""A single-threaded event loop beyond this queues by itself."""
MOST_LAG_S = 0.005
MOST_LATENESS_S = 0.005
LEAST_LATENESS_SHARE = 0.05
"""Lateness below this share of the median TTFT changes no conclusion."""
MOST_STARVED_SHARE = 0.01
LEAST_RATE_SHARE = 0.98
MOST_SLEEP_S = 0.5
MOST_CLOCK_STEP_S = 0.5


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
    reasons = [
        *_busy(facts),
        *_overrun(facts),
        *_late(lateness, ttft),
        *_starved(facts, duration_s),
        *_slow(facts, achieved_per_s, lateness, client_queue),
    ]
    return Generator(
        workers=facts.workers,
        cpu_share=facts.cpu_share,
        loop_lag_p99_s=facts.loop_lag_p99_s,
        starved_s=facts.starved_s,
        offered_per_s=facts.offered_per_s,
        achieved_per_s=achieved_per_s,
        is_bottleneck=bool(reasons),
        reasons=reasons,
        clock_warnings=clock_warnings(facts.clocks),
    )


def _busy(facts: GeneratorFacts) -> list[str]:
    found = []
    if facts.cpu_share > MOST_CPU_SHARE:
        found.append(
            f"a worker process used {facts.cpu_share:.0%} of a core; raise --workers, or use a machine with free cores"
        )
    if facts.loop_lag_p99_s > MOST_LAG_S:
        found.append(
            f"a worker's own timer fired {facts.loop_lag_p99_s * 1e3:.1f} ms late (99th percentile): the machine is "
            "too busy to take times to the millisecond; leave it cores, or run the generator elsewhere"
        )
    return found


def _overrun(facts: GeneratorFacts) -> list[str]:
    if not facts.late_digests:
        return []
    return [f"{facts.late_digests} answers came faster than they could be interpreted; raise --workers"]


def _late(lateness: MetricDistribution | None, ttft: MetricDistribution | None) -> list[str]:
    p99 = _percentile(lateness, 99)
    median = _percentile(ttft, 50)
    if p99 is None or p99 <= MOST_LATENESS_S or (median is not None and p99 < LEAST_LATENESS_SHARE * median):
        return []
    return [f"requests left {p99 * 1e3:.1f} ms late (99th percentile); raise --workers, or leave the generator a core"]


def _starved(facts: GeneratorFacts, duration_s: float) -> list[str]:
    slots = facts.cap or 1
    if duration_s <= 0 or facts.starved_s <= MOST_STARVED_SHARE * duration_s * slots:
        return []
    return [
        f"slots stood free for {facts.starved_s:.1f} s in all because prompts were not made fast enough; "
        "use shorter prompts, --tokenizer DIR instead of the server's, or another core"
    ]


def _slow(
    facts: GeneratorFacts,
    achieved: float | None,
    lateness: MetricDistribution | None,
    client_queue: MetricDistribution | None,
) -> list[str]:
    """A rate that was not kept although no cap held requests back.

    Not of a run that ended early: the few requests that left are then held against a longer schedule, whose random gaps
    have another mean.
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
    return [f"only {achieved:.2f} of {offered:.2f} requests per second left; raise --workers"]


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
    """A percentile that was drawn for the curve."""
    return next((value for p, value in values.curve if p == percentile), None) if values else None
