"""Small traces as files, and a configuration to plan with."""

import json
from collections.abc import Iterable
from pathlib import Path

from serving.config import load_config
from serving.config.serve import ServeConfig

CONFIG_FILE = Path(__file__).parents[3] / "deploy" / "cloudmatrix384.toml"


def config() -> ServeConfig:
    """The paper's deployment."""
    return load_config(CONFIG_FILE)


def write_trace(path: Path, requests: Iterable[tuple[float, int, int]]) -> Path:
    """Write a trace in Mooncake's format; prompts have no common prefix.

    Args:
        requests: arrival [s], prompt and output tokens.
    """
    lines, block = [], 0
    for arrival_s, prompt, output in requests:
        blocks = list(range(block, block + -(-prompt // 512)))
        block += len(blocks)
        row = {"timestamp": int(1000 * arrival_s), "input_length": prompt, "output_length": output, "hash_ids": blocks}
        lines.append(json.dumps(row))
    path.write_text("\n".join(lines) + "\n")
    return path


def steady(path: Path, *, rate_per_s: float = 8.0, seconds: float = 40.0, prompt: int = 6000, output: int = 40) -> Path:
    """A steady load."""
    count = int(rate_per_s * seconds)
    return write_trace(path, ((number / rate_per_s, prompt, output) for number in range(count)))
