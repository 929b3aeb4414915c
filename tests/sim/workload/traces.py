"""Small traces written by hand."""

import json
from pathlib import Path
from typing import Any

from serving.sim.workload.request import TraceRequest, Workload


def mooncake(*lines: dict[str, Any]) -> str:
    """Lines of a Mooncake trace."""
    return "".join(json.dumps(line) + "\n" for line in lines)


def line(timestamp: float, prompt: int, output: int = 10, ids: tuple[int, ...] = (), **more: Any) -> dict[str, Any]:
    """One request."""
    fields = {"timestamp": timestamp, "input_length": prompt, "output_length": output, "hash_ids": list(ids)}
    return fields | more


def written(folder: Path, text: str | bytes, name: str = "trace") -> Path:
    """A file with this text."""
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def listed(workload: Workload) -> list[TraceRequest]:
    """All requests."""
    return list(workload.requests)


CHAT = mooncake(
    line(0, 1300, 5, (0, 1, 2)),
    line(1000, 1024, 6, (0, 3)),
    line(1000, 100, 7),
    line(2500, 2000, 8, (0, 1, 4, 5)),
)
"""Four requests: two share a block with the first, the last of them two."""
