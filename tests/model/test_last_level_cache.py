"""Reading the cache sizes that Linux reports."""

from pathlib import Path

import pytest

from serving.model.native.panel_layout import last_level_cache_bytes


def cache(folder: Path, index: int, level: str, size: str) -> None:
    one = folder / f"index{index}"
    one.mkdir()
    (one / "level").write_text(level + "\n")
    (one / "size").write_text(size + "\n")


def test_the_one_next_to_memory_counts(tmp_path: Path) -> None:
    for index, (level, size) in enumerate([("1", "48K"), ("1", "32K"), ("3", "32768K"), ("2", "1024K")]):
        cache(tmp_path, index, level, size)
    assert last_level_cache_bytes(tmp_path) == 32 << 20
    assert last_level_cache_bytes(tmp_path / "missing") == 0


@pytest.mark.parametrize(("size", "found"), [("36M", 36 << 20), ("", 0), ("lots", 0)])
def test_sizes_in_mebibytes_and_rubbish(tmp_path: Path, size: str, found: int) -> None:
    cache(tmp_path, 0, "3", size)
    assert last_level_cache_bytes(tmp_path) == found
