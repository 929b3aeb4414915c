"""Description of a trace in a few lines."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from loadgen.trace.recorded import RecordedTrace
from loadgen.trace.request import Trace


@dataclass(frozen=True)
class TraceSummary:
    """Figures of a trace.

    Attributes:
        duration_s: from the first session's start to the last one's. blocks: of all prompts, partial ones included.
        repeated_blocks: of these, seen before in the file: the hits of an endless prefix cache.
        branches: subagents. pauses_s: median and 90th percentile of the pauses before later turns; None without any.
        with_body: requests that replay exactly. notes: interpretations of unusual values.
    """

    path: Path
    requests: int = 0
    sessions: int = 0
    duration_s: float = 0.0
    input_tokens: int = 0
    output_tokens: int = 0
    block_tokens: int = 0
    blocks: int = 0
    repeated_blocks: int = 0
    branches: int = 0
    pauses_s: tuple[float, float] | None = None
    with_body: int = 0
    endpoint: str = ""
    notes: tuple[str, ...] = ()

    def lines(self) -> list[str]:
        """For people."""
        share = f"{self.repeated_blocks / self.blocks:.1%}" if self.blocks else "unknown"
        mean = max(1, self.requests)
        to = f", to {self.endpoint}" if self.endpoint else ""
        return [
            f"{self.requests} requests in {self.sessions} sessions over {self.duration_s:.1f} s{to}",
            f"{self.input_tokens / mean:.0f} tokens of prompt and {self.output_tokens / mean:.0f} of answer on average",
            f"{share} of {self.blocks} blocks of {self.block_tokens} tokens repeat earlier prefixes"
            if self.block_tokens
            else "it has no information about prefixes",
            *([self._waits()] if self.pauses_s is not None else []),
            f"{self.with_body} requests have their exact body",
            *self.notes,
        ]

    def _waits(self) -> str:
        median_s, most_s = self.pauses_s or (0.0, 0.0)
        joined = f"{self.branches} branches that join their session; " if self.branches else ""
        return f"{joined}pauses of {median_s:.1f} s in the median, 90 % of at most {most_s:.1f} s"


def describe(trace: Trace) -> TraceSummary:
    """Read a trace and sum it up. Memory grows with the blocks that differ.

    Raises: TraceFormatError as reading does.
    """
    seen: set[int] = set()
    requests = sessions = input_tokens = output_tokens = blocks = with_body = 0
    first_s = last_s = 0.0
    branches: set[tuple[int | str | None, int]] = set()
    pauses_s: list[float] = []
    for request in trace.requests():
        if not requests:
            first_s = request.arrival_s
        requests += 1
        if not request.follows:
            sessions += 1
            last_s = request.arrival_s
        else:
            pauses_s.append(request.think_s)
        if request.branch:
            branches.add((request.session, request.branch))
        input_tokens += request.input_tokens
        output_tokens += request.output_tokens
        blocks += len(request.hash_ids)
        with_body += request.body is not None
        seen.update(request.hash_ids)
    return TraceSummary(
        path=trace.path,
        requests=requests,
        sessions=sessions,
        duration_s=last_s - first_s,
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        block_tokens=trace.block_tokens or 0,
        blocks=blocks,
        repeated_blocks=blocks - len(seen),
        branches=len(branches),
        pauses_s=None if not pauses_s else (float(np.quantile(pauses_s, 0.5)), float(np.quantile(pauses_s, 0.9))),
        with_body=with_body,
        endpoint=trace.header.endpoint if isinstance(trace, RecordedTrace) else "",
        notes=tuple(trace.notes.values()),
    )
