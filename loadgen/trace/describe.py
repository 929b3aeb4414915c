"""What is in a trace file, in a few lines."""

from dataclasses import dataclass
from pathlib import Path

from loadgen.trace.file import read_header, read_trace


@dataclass(frozen=True)
class TraceSummary:
    """Figures of a trace.

    Attributes:
        duration_s: from the first session's beginning to the last one's. blocks: of all prompts, partial ones included.
        repeated_blocks: of these, seen before in the file: what an endless prefix cache would have had.
        with_body: requests that replay exactly.
    """

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

    def lines(self) -> list[str]:
        """For people."""
        share = f"{self.repeated_blocks / self.blocks:.1%}" if self.blocks else "unknown"
        mean = max(1, self.requests)
        return [
            f"{self.requests} requests in {self.sessions} sessions over {self.duration_s:.1f} s, to {self.endpoint}",
            f"{self.input_tokens / mean:.0f} tokens of prompt and {self.output_tokens / mean:.0f} of answer on average",
            f"{share} of {self.blocks} blocks of {self.block_tokens} tokens repeat earlier prefixes",
            f"{self.with_body} requests have their exact body",
        ]


def describe(path: Path) -> TraceSummary:
    """Read a trace and sum it up.

    Raises: UsageError if the file cannot be read; TraceFormatError if it is no trace.
    """
    header = read_header(path)
    seen: set[int] = set()
    requests = sessions = input_tokens = output_tokens = blocks = with_body = first_us = last_us = 0
    for request in read_trace(path):
        if not requests:
            first_us = request.timestamp_us
        requests += 1
        sessions += request.turn == 0
        last_us = request.timestamp_us if request.turn == 0 else last_us
        input_tokens += request.input_length
        output_tokens += request.output_length
        blocks += len(request.hash_ids)
        with_body += request.body is not None
        seen.update(request.hash_ids)
    return TraceSummary(
        requests=requests,
        sessions=sessions,
        duration_s=(last_us - first_us) / 1e6,
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        block_tokens=header.block_tokens,
        blocks=blocks,
        repeated_blocks=blocks - len(seen),
        with_body=with_body,
        endpoint=header.endpoint,
    )
