"""Files to windows."""

import json
from pathlib import Path

import torch

from serving.model.config import read_architecture
from serving.tools.quantize.calibration_text import read_text
from serving.tools.quantize.settings import Settings


def rows(ids: torch.Tensor) -> set[tuple[int, ...]]:
    return {tuple(row) for row in ids.tolist()}


def test_text_is_cut_into_windows_one_in_eight_of_them_held_out(original: Path, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("The quick brown fox. " * 400)
    config = read_architecture(original)
    found = read_text(original, config, [tmp_path / "a.txt"], Settings(tokens=1024, window=64))
    assert (found.calibration.length, found.held_out.length) == (64, 64)
    assert found.calibration.tokens == 14 * 64
    assert found.held_out.tokens == 2 * 64
    assert not found.is_random
    assert torch.equal(found.calibration.fed.view(14, 64)[:, 1:], found.calibration.next.view(14, 64)[:, :-1])


def test_windows_of_a_long_text_are_drawn_by_the_seed(original: Path, tmp_path: Path) -> None:
    lines = [json.dumps({"text": f"Story {n} of {n * 7919 % 1000}. "}) for n in range(1000)]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    config = read_architecture(original)

    def drawn(seed: int) -> set[tuple[int, ...]]:
        settings = Settings(tokens=512, window=32, seed=seed)
        return rows(read_text(original, config, [tmp_path / "a.jsonl"], settings).calibration.ids)

    assert drawn(0) == drawn(0)
    assert drawn(0) != drawn(1)


def test_held_out_windows_are_not_calibrated_with(original: Path, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(" ".join(str(n * n) for n in range(3000)))
    config = read_architecture(original)
    found = read_text(original, config, [tmp_path / "a.txt"], Settings(tokens=4096, window=32))
    assert not rows(found.calibration.ids) & rows(found.held_out.ids)


def test_short_texts_get_short_windows(original: Path, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(" ".join(str(n) for n in range(60)))
    config = read_architecture(original)
    found = read_text(original, config, [tmp_path / "a.txt"], Settings())
    assert 16 <= found.calibration.length < 64
    assert found.held_out.ids.shape[0] >= 1


def test_random_tokens_are_of_the_vocabulary(original: Path) -> None:
    config = read_architecture(original)
    found = read_text(original, config, [], Settings(tokens=2048, window=64))
    assert found.is_random
    assert int(found.calibration.ids.max()) < config.vocab_size
    assert found.calibration.tokens + found.held_out.tokens == 2048
