"""Description of a trace in a few lines."""

from dataclasses import dataclass
from pathlib import Path

from loadgen.trace.recorded import RecordedTrace
from loadgen.trace.request import Trace


@dataclass(frozen=True)
class TraceSummary:
    """Figures of a trace.

    Attributes:
        duration_s: from the first session's start to the last one's. blocks: of all prompts, partial ones included.
        repeated_blocks: of these, seen before in the file: the hits of an endless prefix cache.
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
            f"{self.with_body} requests have their exact body",
            *self.notes,
        ]


def describe(trace: Trace) -> TraceSummary:
    """Read a trace and sum it up. Memory grows with the blocks that differ.

    Raises: TraceFormatError as reading does.
    """
    seen: set[int] = set()
    requests = sessions = input_tokens = output_tokens = blocks = with_body = 0
    first_s = last_s = 0.0
    for request in trace.requests():
        if not requests:
            first_s = request.arrival_s
        requests += 1
        if not request.follows:
            sessions += 1
            last_s = request.arrival_s
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
        with_body=with_body,
        endpoint=trace.header.endpoint if isinstance(trace, RecordedTrace) else "",
        notes=tuple(trace.notes.values()),
    )
