"""Figures of jobs: conversations of several turns, as of an agent, measured as a whole.

The simulator computes its figures here, too, so that a live and a simulated run have the same names and meanings.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from loadgen.record import SUCCESSES, RequestRecord
from loadgen.result import JobFigures, PauseMisses
from loadgen.trace.request import repeated_blocks

PAUSES_S = (
    (5.0, "below 5 s"),
    (20.0, "5 to 20 s"),
    (60.0, "20 to 60 s"),
    (300.0, "1 to 5 min"),
    (np.inf, "above 5 min"),
)
"""Upper bounds of the classes of pauses [s], and their names."""


class TurnSeen(NamedTuple):
    """One turn of a job, as it was measured.

    Attributes:
        job: number of its job. job_turns: turns that the job has in all.
        sent_s: when it was due. ended_s: of its response; None without one.
        finished: whether it has its whole response.
        prompt_tokens, cached_tokens: of the prompt; None = not reported.
        repeated_tokens: leading tokens of its prompt that an earlier turn of the job had; 0 if unknown.
        pause_s: in front of it; None for the first turn.
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
    computed = [tokens for job in done if (tokens := _computed(job)) is not None]
    reported = [turn for job in jobs.values() for turn in job if turn.finished and _computed([turn]) is not None]
    prompt = sum(turn.prompt_tokens or 0 for turn in reported)
    return JobFigures(
        jobs=len(jobs),
        completed=len(done),
        time_p50_s=_quantile(times_s, 0.5),
        time_p95_s=_quantile(times_s, 0.95),
        computed_tokens_p50=_quantile(computed, 0.5),
        computed_tokens_p95=_quantile(computed, 0.95),
        computed_tokens_mean=float(np.mean(computed)) if computed else None,
        cached_share=sum(turn.cached_tokens or 0 for turn in reported) / prompt if prompt else None,
        npu_s_per_job=npu_s / len(done) if done and npu_s is not None else None,
        pauses=_misses(reported),
    )


def with_npus(jobs: JobFigures | None, npus: int | None, duration_s: float) -> JobFigures | None:
    """The same figures with the cost of a job on this many NPUs."""
    if jobs is None or npus is None or not jobs.completed:
        return jobs
    return replace(jobs, npu_s_per_job=npus * duration_s / jobs.completed)


def jobs_of(records: Iterable[RequestRecord]) -> JobFigures | None:
    """Figures of a live run's jobs, without their cost."""
    seen: dict[int, set[int]] = {}
    turns = []
    for record in sorted(records, key=lambda one: (one.index, one.turn)):
        repeated = repeated_blocks(record.hash_ids, seen.setdefault(record.index, set())) * record.block_tokens
        tokens = record.input_tokens
        turns.append(
            TurnSeen(
                record.index,
                record.job_turns,
                record.intended_s,
                record.ended_s,
                record.outcome in SUCCESSES,
                tokens,
                record.cached_tokens,
                repeated if tokens is None else min(repeated, tokens),
                record.think_s if record.turn else None,
            )
        )
    return job_figures(turns, None)


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


def _quantile(values: list[float] | list[int], share: float) -> float | None:
    return float(np.quantile(values, share)) if values else None
