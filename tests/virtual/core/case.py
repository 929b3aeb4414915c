"""A small system for tests: the shipped supernode with other sizes, and requests made by hand."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from serving.config.load import load_config
from serving.config.serve import ServeConfig
from serving.virtual.result import SimResult
from serving.virtual.workload.columns import RequestStream, TraceRequest

CONFIG = Path(__file__).parents[3] / "deploy" / "cloudmatrix384.toml"
SHIPPED = load_config(CONFIG)


def config(**sections: dict[str, Any]) -> ServeConfig:
    """The shipped configuration with other values, and four memory servers instead of 32."""
    changed = {"kvcache": {"replicas": 4, "ub_memory_mib": 65_536}} | sections
    return replace(SHIPPED, **{name: replace(getattr(SHIPPED, name), **values) for name, values in changed.items()})


def workload(requests: Sequence[tuple[float, int, int]], blocks: Sequence[Sequence[int]] = ()) -> RequestStream:
    """Requests as (arrival, prompt tokens, output tokens), with prefix ids if given."""
    made = [
        TraceRequest(*request, tuple(blocks[index]) if index < len(blocks) else ())
        for index, request in enumerate(requests)
    ]
    last = made[-1].arrival_s if made else 0.0
    return RequestStream("by hand", made, count=len(made), duration_s=last)


def mean_tpot(result: SimResult) -> float:
    """Time per output token over all tokens of all requests but the first ones."""
    rows = result.requests
    spans = [b - a for a, b in zip(rows.first_token_s, rows.finish_s, strict=True)]
    return sum(spans) / sum(n - 1 for n in rows.output_tokens)


def burst(count: int, prompt: int = 4096, output: int = 64, every_s: float = 0.05) -> RequestStream:
    """Equal requests, evenly spaced."""
    return workload([(every_s * n, prompt, output) for n in range(count)])
