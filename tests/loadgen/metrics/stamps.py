"""Records with hand-made stamps."""

from array import array
from collections.abc import Sequence
from typing import Any

from loadgen.record import RequestOutcome, RequestRecord


def record(chunks: Sequence[float] = (), *, tokens: Sequence[int] = (), **fields: Any) -> RequestRecord:
    """A successful request that was due at 1.0, could be sent at 1.25 and was sent at 1.5, by default."""
    usual: dict[str, Any] = {
        "index": 0, "outcome": RequestOutcome.OK, "intended_s": 1.0, "released_s": 1.25, "started_s": 1.5,
        "ended_s": (chunks[-1] if chunks else 1.5) + 0.25, "output_tokens": len(chunks), "input_tokens": 10,
        "planned_input_tokens": 10, "chunk_times": array("d", chunks).tobytes(),
        "chunk_tokens": array("i", tokens).tobytes(), "first_answer_s": chunks[0] if chunks else None,
    }  # fmt: skip
    return RequestRecord(**(usual | fields))


def failed(**fields: Any) -> RequestRecord:
    """A request that was refused at 1.75."""
    usual: dict[str, Any] = {
        "outcome": RequestOutcome.REJECTED,
        "status": 429,
        "error": "full",
        "output_tokens": None,
        "ended_s": 1.75,
    }
    return record(**(usual | fields))
