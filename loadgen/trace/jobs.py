"""Figures of jobs: conversations of several turns, as of an agent, measured as a whole.

The simulator computes its figures here, too, so that a live and a simulated run have the same names and meanings.
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

UNFINISHED = "the end of the run, before their last turn"
"""Problem of a job that was still running."""

PAUSES_S = (
    (5.0, "below 5 s"),
    (20.0, "5 to 20 s"),
    (60.0, "20 to 60 s"),
    (300.0, "1 to 5 min"),
    (math.inf, "above 5 min"),
)
"""Upper bounds of the classes of pauses [s], and their names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PauseMisses:
    """Turns of jobs after pauses of one class.

    Attributes:
        pause: name of the class.
        turns: of those whose repeated tokens are known and not 0.
        repeated_tokens: leading prompt tokens that an earlier turn of the job had.
        missed_tokens: of these, computed again; up to one KV block a turn because caches hold whole blocks.
    """

    pause: str
    turns: int
    repeated_tokens: int
    missed_tokens: int

    @property
    def miss_share(self) -> float:
        """Part of the repeated tokens that was computed again, 0..1."""
        return self.missed_tokens / self.repeated_tokens if self.repeated_tokens else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFigures:
    """Conversations of several turns as a whole; the simulator reports the same. Unknown is None.

    Attributes:
        jobs: that were begun. completed: every turn has its whole response.
        time_p50_s, time_p95_s: from the first turn's due time to the last response's end, pauses included; of completed
            jobs, as the next five.
        responses_p50_s, responses_p95_s: the part of it that is no pause: the sum of a job's response times.
        computed_tokens_p50, computed_tokens_p95, computed_tokens_mean: prompt tokens of a job that were not cached.
        cached_share: cached part of the prompt tokens of all turns, 0..1.
        npu_s_per_job: NPU time of the whole run over completed jobs [s].
        pauses: misses by the length of the pause in front of a turn.
        incomplete: jobs that did not complete, by what happened to the first turn without its whole response; the
            commonest first.
    """

    jobs: int
    completed: int
    time_p50_s: float | None
    time_p95_s: float | None
    computed_tokens_p50: float | None
    computed_tokens_p95: float | None
    computed_tokens_mean: float | None
    cached_share: float | None
    npu_s_per_job: float | None
    pauses: list[PauseMisses]
    responses_p50_s: float | None = None
    responses_p95_s: float | None = None
    incomplete: dict[str, int] = field(default_factory=dict)


class TurnSeen(NamedTuple):
    """One turn of a job, as it was measured.

    Attributes:
        job: number of its job. job_turns: turns that the job has in all.
        sent_s: when it was due. ended_s: of its response; None without one.
        finished: whether it has its whole response.
        prompt_tokens, cached_tokens: of the prompt; None = not reported.
        repeated_tokens: leading tokens of its prompt that an earlier turn of the job had; 0 if unknown.
        pause_s: in front of it; None for the first turn.
        problem: why it has not its whole response; empty if it has.
    """

    job: int
    job_turns: int
    sent_s: float
    ended_s: float | None
    finished: bool
    prompt_tokens: int | None
    cached_tokens: int | None
    repeated_tokens: int
    pause_s: float | None
    problem: str = ""


def job_figures(turns: Iterable[TurnSeen], npu_s: float | None) -> JobFigures | None:
    """Figures of all jobs; None if no job has several turns.

    Args:
        npu_s: NPU time of the run [s]; None = unknown.
    """
    jobs: dict[int, list[TurnSeen]] = {}
    for turn in turns:
        jobs.setdefault(turn.job, []).append(turn)
    if not any(job[0].job_turns > 1 for job in jobs.values()):
        return None
    done = [job for job in jobs.values() if len(job) == job[0].job_turns and all(turn.finished for turn in job)]
    times_s = [max(turn.ended_s or 0.0 for turn in job) - min(turn.sent_s for turn in job) for job in done]
    responses_s = [sum((turn.ended_s or 0.0) - turn.sent_s for turn in job) for job in done]
    computed = [tokens for job in done if (tokens := _computed(job)) is not None]
    reported = [turn for job in jobs.values() for turn in job if turn.finished and _computed([turn]) is not None]
    prompt = sum(turn.prompt_tokens or 0 for turn in reported)
    return JobFigures(
        jobs=len(jobs),
        completed=len(done),
        time_p50_s=_quantile(times_s, 0.5),
        time_p95_s=_quantile(times_s, 0.95),
        responses_p50_s=_quantile(responses_s, 0.5),
        responses_p95_s=_quantile(responses_s, 0.95),
        computed_tokens_p50=_quantile(computed, 0.5),
        computed_tokens_p95=_quantile(computed, 0.95),
        computed_tokens_mean=sum(computed) / len(computed) if computed else None,
        cached_share=sum(turn.cached_tokens or 0 for turn in reported) / prompt if prompt else None,
        npu_s_per_job=npu_s / len(done) if done and npu_s is not None else None,
        pauses=_misses(reported),
        incomplete=_problems(jobs.values()),
    )


def with_npus(jobs: JobFigures | None, npus: int | None, duration_s: float) -> JobFigures | None:
    """The same figures with the cost of a job on this many NPUs."""
    if jobs is None or npus is None or not jobs.completed:
        return jobs
    return replace(jobs, npu_s_per_job=npus * duration_s / jobs.completed)


def _problems(jobs: Iterable[list[TurnSeen]]) -> dict[str, int]:
    """Jobs by why they did not complete; one that has turns that were never sent ran out of time."""
    counts: Counter[str] = Counter()
    for job in jobs:
        stopped = min((turn for turn in job if not turn.finished), key=lambda turn: turn.sent_s, default=None)
        if stopped is not None:
            counts[stopped.problem or UNFINISHED] += 1
        elif len(job) < job[0].job_turns:
            counts[UNFINISHED] += 1
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def _computed(turns: list[TurnSeen]) -> int | None:
    """Prompt tokens that were computed; None if one turn's are not known."""
    total = 0
    for turn in turns:
        if turn.prompt_tokens is None or turn.cached_tokens is None:
            return None
        total += turn.prompt_tokens - turn.cached_tokens
    return total


def _misses(turns: list[TurnSeen]) -> list[PauseMisses]:
    """Misses by the class of the pause in front; classes without a turn are left out."""
    sums = {name: [0, 0, 0] for _, name in PAUSES_S}
    for turn in turns:
        if turn.pause_s is not None and turn.repeated_tokens:
            row = sums[next(name for bound_s, name in PAUSES_S if turn.pause_s < bound_s)]
            row[0] += 1
            row[1] += turn.repeated_tokens
            row[2] += max(0, turn.repeated_tokens - (turn.cached_tokens or 0))
    return [
        PauseMisses(pause=name, turns=count, repeated_tokens=repeated, missed_tokens=missed)
        for name, (count, repeated, missed) in sums.items()
        if count
    ]


def _quantile(values: Sequence[float], share: float) -> float | None:
    """Linear interpolation, as of every other percentile; None without values."""
    if not values:
        return None
    ordered, place = sorted(values), share * (len(values) - 1)
    below = int(place)
    above = min(below + 1, len(values) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)
