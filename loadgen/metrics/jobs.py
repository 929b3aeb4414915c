"""Figures of a live run's jobs, from its records."""

from collections.abc import Iterable

from loadgen.record import SUCCESSES, RequestOutcome, RequestRecord
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
                _problem(record),
            )
        )
    return job_figures(turns, None)


def _problem(record: RequestRecord) -> str:
    """Why a turn has no whole response, and where it is known, what to change; empty if it has one."""
    if record.outcome in SUCCESSES or record.outcome is RequestOutcome.UNFINISHED:
        return ""
    if record.status == 400 and "context" in record.error:
        return "a prompt longer than the model takes: lower --length-scale"
    status = f" ({record.status})" if record.status not in (0, 200) else ""
    return f"a request that ended as {record.outcome.value}{status}"
