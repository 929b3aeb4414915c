"""What the peers' programs print, as values."""

import json
from dataclasses import dataclass
from typing import Any

_COLUMNS = 10


@dataclass(frozen=True, slots=True)
class BatchedBench:
    """One line of `llama-batched-bench`: sequences, and tokens per second of their prompt and of their decode steps."""

    batch: int
    prompt_per_s: float
    decode_per_s: float


def parse_batched_bench(output: str) -> list[BatchedBench]:
    """The table that `llama-batched-bench` prints between other things; llama.cpp's and the fork's look alike.

    Columns: PP, TG, B, N_KV, T_PP, S_PP, T_TG, S_TG, T, S.
    """
    rows = [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in output.splitlines()]
    lines = [cells for cells in rows if len(cells) == _COLUMNS and cells[0].isdecimal()]
    return [BatchedBench(int(cells[2]), float(cells[5]), float(cells[7])) for cells in lines]


def parse_loadgen(output: str) -> tuple[float, dict[str, int]]:
    """Output tokens per second and how requests ended, of `loadgen run --json`.

    Raises: ValueError if it holds no result.
    """
    found: dict[str, Any] = json.loads(output)
    rate = found.get("throughput", {}).get("output_tokens_per_s")
    if rate is None:
        raise ValueError(f"loadgen gave no rate: {output[:300]}")
    return float(rate), dict(found["outcomes"])
