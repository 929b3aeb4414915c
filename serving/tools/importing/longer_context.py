"""A checkpoint with a longer context than the one that it was trained for: the same weights, positions scaled by YaRN.

The first prompt of a coding agent has 10 to 21 thousand tokens; the bundled models were trained for less. YaRN (arXiv
2309.00071) extends the context without training, at some loss of quality, also for short texts. It is therefore applied
only if a start requests the longer context.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hardware.nesting import parse_json
from serving.errors import ConfigError, ModelError
from serving.model.architecture import Architecture
from serving.model.config import read_architecture
from serving.regular_file import MOST_JSON_BYTES, read_regular
from serving.tools.importing.smollm2 import alone, smollm2_folder

_LONGEST_FACTOR = 32
"""The largest factor that YaRN's paper evaluates."""


def with_context(folder: Path, tokens: int, tell: Callable[[str], None]) -> Path:
    """The model with a context of at least `tokens`.

    Returns: its folder, if the context is long enough; else that of the scaled model in the user's cache.
    Raises: ModelError if the folder is not a model's; ConfigError if its positions cannot be scaled that far.
    Effects: writes that folder if it is not there, with links to the weights (copies on another file system); passes
        `tell` one line about the loss of quality.
    """
    model = read_architecture(folder)
    trained = model.max_position_embeddings
    if tokens <= trained:
        return folder
    factor = -(-tokens // trained)
    raw = parse_json(read_regular(folder / "config.json", most_bytes=MOST_JSON_BYTES))
    scaled = {**raw, **_scaling(raw, model, factor), "max_position_embeddings": factor * trained}
    longer = smollm2_folder().with_name(f"{folder.name}-x{factor}-{_digest(folder, scaled)}")
    tell(
        f"a context of {tokens} tokens is up to {factor} times the {trained} that {folder.name} was trained for: its"
        " positions are scaled by YaRN, which lowers the quality of its output"
    )
    with alone(longer):
        if not (longer / "config.json").is_file():
            _write(folder, longer, scaled)
    return longer


def _digest(folder: Path, config: dict[str, Any]) -> str:
    """Digest of the inputs of a scaled model; weights count by size and time of change, as reading them takes long."""
    weights = sorted((one.name, one.stat().st_size, one.stat().st_mtime_ns) for one in folder.glob("*.safetensors"))
    return hashlib.sha256(json.dumps([str(folder.resolve()), config, weights]).encode()).hexdigest()[:8]


def _scaling(raw: dict[str, Any], model: Architecture, factor: int) -> dict[str, Any]:
    """The keys of config.json that scale positions.

    Raises: ConfigError.
    """
    trained, key = model.max_position_embeddings, "rope_parameters" if raw.get("rope_parameters") else "rope_scaling"
    given = raw.get(key) or {}
    if given.get("rope_type", given.get("type", "default")) != "default" or factor > _LONGEST_FACTOR:
        limit = trained if factor <= _LONGEST_FACTOR else trained * _LONGEST_FACTOR
        raise ConfigError(f"--context: this model's contexts have at most {limit} tokens")
    yarn: dict[str, Any] = {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": trained}
    if raw.get("kv_lora_rank"):  # DeepSeek's form of the correction of scores, which scales the softmax
        yarn |= {"mscale": 1.0, "mscale_all_dim": 1.0}
    return {key: {**given, **yarn}}


def _write(folder: Path, longer: Path, config: dict[str, Any]) -> None:
    """Raises: ModelError if the cache cannot be written."""
    partial = longer.with_name(f".{longer.name}.partial")
    try:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        for file in folder.iterdir():
            if file.suffix in (".safetensors", ".json", ".jinja", ".model") and file.name != "config.json":
                _link(file, partial / file.name)
        (partial / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        partial.rename(longer)
    except OSError as error:
        raise ModelError(f"{longer.parent} cannot be written ({error.strerror})") from error


def _link(file: Path, copy: Path) -> None:
    try:
        os.link(file.resolve(), copy)
    except OSError:  # another file system, or another user's file
        shutil.copyfile(file, copy)
