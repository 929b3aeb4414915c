"""Contexts beyond the trained one: the scaled copy of a model, and those that are refused."""

import json
from pathlib import Path
from typing import Any

import pytest

from serving.errors import ConfigError
from serving.model.config import read_architecture
from serving.shipped import SHIPPED
from serving.tools.importing.longer_context import with_context

STORYTELLER = SHIPPED / "models" / "storyteller"


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def test_a_longer_context_scales_positions_and_keeps_the_rest() -> None:
    told: list[str] = []
    longer = with_context(STORYTELLER, 30_000, told.append)
    scaled, plain = read_architecture(longer), read_architecture(STORYTELLER)
    assert scaled.max_position_embeddings == 15 * 2048
    assert (scaled.rope.theta, scaled.hidden_size) == (plain.rope.theta, plain.hidden_size)
    assert plain.rope.scaling is None
    assert scaled.rope.scaling is not None
    assert "up to 15 times the 2048 that storyteller was trained for" in told[0]
    for name in ("model.safetensors", "tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        assert (longer / name).stat().st_size == (STORYTELLER / name).stat().st_size
    before = (longer / "config.json").stat().st_mtime_ns
    assert with_context(STORYTELLER, 30_720, told.append) == longer
    assert (longer / "config.json").stat().st_mtime_ns == before, "a system may serve it"


def test_a_context_within_the_trained_one_changes_nothing(tmp_path: Path) -> None:
    assert with_context(STORYTELLER, 2048, lambda _: pytest.fail("nothing to tell")) == STORYTELLER
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("keys", "tokens", "limit"),
    [({}, 65_537, 65_536), ({"rope_scaling": {"type": "linear", "factor": 2.0}}, 2049, 2048)],
)
def test_what_cannot_be_scaled_is_refused(tmp_path: Path, keys: dict[str, Any], tokens: int, limit: int) -> None:
    raw = json.loads((STORYTELLER / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**raw, **keys}))
    with pytest.raises(ConfigError, match=f"--context: this model's contexts have at most {limit} tokens"):
        with_context(tmp_path, tokens, lambda _: None)
