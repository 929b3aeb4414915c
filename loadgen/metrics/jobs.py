"""Figures of a live run's jobs, from its records."""

from collections.abc import Iterable

from loadgen.record import SUCCESSES, RequestRecord
from loadgen.trace.jobs import JobFigures, TurnSeen, job_figures
from loadgen.trace.request import repeated_blocks


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
