"""Jobs: conversations whose turns wait for each other, as traces of agents record them.

`RequestStream.requests` have arrival times; the turns of a job have none. A turn starts its pause after the turns that
it waits for have ended, so that a slow system delays it, as it delays an agent.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import NamedTuple

import numpy as np

from loadgen.trace import Trace, TraceRecord, in_sessions, repeated_blocks
from loadgen.trace.draws import scaled_lengths, scaled_prompts
from serving.virtual.workload.columns import refused_in_our_terms
from serving.virtual.workload.replay import Portion, Stretch
from serving.virtual.workload.reshaping import Scaling


class JobTurn(NamedTuple):
    """One request of a job.

    Attributes:
        prompt_tokens: of the whole prompt. output_tokens: at least 1 each.
        runs: prefix ids as runs of consecutive ids, (first, last); see `TraceRequest.blocks`.
        waits_for: turns of the job, counted from 0, whose ends it waits for; empty only for turns that start the job.
        pause_s: from the last of those ends to its start.
        branch: subagent that sends it, from 1; 0 = the main line.
        stop: why its recorded response ended, such as "tool_use".
        repeated_blocks: leading trace blocks that an earlier turn of the job had.
    """

    prompt_tokens: int
    output_tokens: int
    runs: tuple[tuple[int, int], ...]
    waits_for: tuple[int, ...]
    pause_s: float
    branch: int
    stop: str
    repeated_blocks: int

    def blocks(self) -> tuple[int, ...]:
        """The ids of its blocks."""
        return tuple(chain.from_iterable(range(first, last + 1) for first, last in self.runs))


@dataclass(frozen=True, slots=True)
class TraceJob:
    """One conversation. `number`: unique in the workload. `start_s`: of its first turn, from the start of the trace."""

    number: int
    name: str
    start_s: float
    turns: tuple[JobTurn, ...]

    @property
    def prompt_tokens(self) -> int:
        return sum(turn.prompt_tokens for turn in self.turns)


@dataclass(frozen=True, slots=True)
class JobReplay:
    """Jobs of a trace: a stretch of it, repeated, limited, sharded and scaled. Each iteration yields the same jobs.

    The rate compresses the times between jobs, not their pauses: those are the time that tools and users take.

    Attributes:
        kept: all jobs of the stretch, in order of their start; `start_s` counts from the stretch.
    """

    kept: tuple[TraceJob, ...]
    block_tokens: int
    stretch: Stretch
    scaling: Scaling
    portion: Portion

    def __iter__(self) -> Iterator[TraceJob]:
        which, shards = self.portion.shard
        tokens = [0] * shards
        for job in islice(self._passes(), self.portion.limit):
            shard = tokens.index(min(tokens))
            tokens[shard] += job.prompt_tokens
            if shard == which:
                yield self._scaled(job)

    def _passes(self) -> Iterator[TraceJob]:
        """The jobs of all passes, each with names and ids that no other pass has."""
        count = len(self.kept)
        step = 1 + max((last for job in self.kept for turn in job.turns for _, last in turn.runs), default=-1)
        last_s = self.kept[-1].start_s if self.kept else 0.0
        period_s = last_s * count / (count - 1) if count > 1 else last_s + 1.0
        if self.stretch.end_s < float("inf"):
            period_s = self.stretch.end_s - self.stretch.start_s
        for again in range(self.portion.repeat):
            for job in self.kept:
                turns = tuple(_moved(turn, step * again) for turn in job.turns) if again else job.turns
                yield TraceJob(job.number + again * count, job.name, job.start_s + again * period_s, turns)

    def _scaled(self, job: TraceJob) -> TraceJob:
        scaling, turns = self.scaling, job.turns
        if scaling.prompt != 1 or scaling.output != 1:
            prompts = scaled_prompts(
                np.array([turn.prompt_tokens for turn in turns]), self.block_tokens, scaling.prompt
            ).tolist()
            outputs = np.maximum(
                1, scaled_lengths(np.array([turn.output_tokens for turn in turns]), scaling.output)
            ).tolist()
            turns = tuple(
                turn._replace(prompt_tokens=prompt, output_tokens=output)
                for turn, prompt, output in zip(turns, prompts, outputs, strict=True)
            )
        return replace(job, start_s=job.start_s / scaling.rate, turns=turns)


def jobs_of(trace: Trace, stretch: Stretch, most: int | None = None) -> tuple[TraceJob, ...]:
    """The jobs of a trace that start in the stretch, in order of their start.

    Args:
        most: read no further than this many; None = all.
    Raises: TraceError with the line that is no conversation.
    """
    found: list[TraceJob] = []
    zero = 0
    with refused_in_our_terms():
        for records in in_sessions(trace):
            start_s = records[0].arrival_s
            if stretch.start_s <= start_s < stretch.end_s:
                zero += sum(not record.output_tokens for record in records)
                name = str(records[0].session)
                found.append(TraceJob(len(found), name, start_s - stretch.start_s, _turns(records)))
            if len(found) == most or start_s >= stretch.end_s:
                break
    if zero:
        trace.notes["answers"] = f"answers of 0 tokens, asked for with 1: {zero}"
    return tuple(found)


def _turns(records: Iterable[TraceRecord]) -> tuple[JobTurn, ...]:
    seen: set[int] = set()
    turns: list[JobTurn] = []
    for number, one in enumerate(records):
        waits = one.waits_for or ((number - 1,) if one.follows else ())
        repeated = repeated_blocks(one.hash_ids, seen)
        turns.append(
            JobTurn(
                one.input_tokens,
                one.output_tokens or 1,
                _runs(one.hash_ids),
                waits,
                one.think_s,
                one.branch,
                one.stop,
                repeated,
            )
        )
    return tuple(turns)


def _runs(ids: list[int]) -> tuple[tuple[int, int], ...]:
    """Ids as runs of consecutive ones: a hundredth of the memory."""
    array = np.array(ids, np.int64)
    if not len(array):
        return ()
    breaks = np.flatnonzero(np.diff(array) != 1) + 1
    firsts = array[np.concatenate(([0], breaks))].tolist()
    lasts = array[np.concatenate((breaks - 1, [len(array) - 1]))].tolist()
    return tuple(zip(firsts, lasts, strict=True))


def _moved(turn: JobTurn, by: int) -> JobTurn:
    return turn._replace(runs=tuple((first + by, last + by) for first, last in turn.runs))
