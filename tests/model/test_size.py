"""Bytes of a rank's weights, from the checkpoint alone."""

from pathlib import Path

import pytest

from serving.model.size import rank_weight_bytes, weight_bytes
from tests.model.random_checkpoint import write_random_checkpoint


def test_a_rank_books_its_slots_and_all_that_is_no_expert(tmp_path: Path) -> None:
    write_random_checkpoint(tmp_path)
    whole = weight_bytes(tmp_path, 4)
    experts = 3 * 8 * 3 * 64 * 24 * 4  # layers, experts, matrices of an expert
    assert rank_weight_bytes(tmp_path, 4, experts=8, slots=8) == whole
    assert rank_weight_bytes(tmp_path, 4, experts=8, slots=4) == whole - experts // 2
    assert rank_weight_bytes(tmp_path, 4, experts=8, slots=9) == whole + experts // 8


def test_a_file_that_is_not_there_weighs_nothing(tmp_path: Path) -> None:
    assert rank_weight_bytes(tmp_path, 4, experts=8, slots=4) == 0
    (tmp_path / "a.safetensors").symlink_to("/dev/null")
    with pytest.raises(OSError, match="regular file"):
        rank_weight_bytes(tmp_path, 4, experts=8, slots=4)
