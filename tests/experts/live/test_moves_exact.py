"""Experts move between ranks that compute: every token is that of one process with all experts."""

import time
from pathlib import Path

import pytest

from tests.experts.live.moving_group import MovingGroup
from tests.experts.live.moving_requests import requests
from tests.instance.native_pair import native_or_skip
from tests.instance.rank_threads import RankThreads
from tests.model.random_checkpoint import write_random_checkpoint


@pytest.mark.parametrize("mapped", [(), (0,), (0, 1, 2)])
def test_tokens_are_exact_while_experts_move(shm: Path, mapped: tuple[int, ...]) -> None:
    native_or_skip()
    group = RankThreads(write_random_checkpoint(shm / "model", dtype="bfloat16"), "bfloat16", 3)
    work = requests(3, each=6)
    wanted = group.alone([spec for specs in work for spec in specs])
    moving = MovingGroup(group, shm, mapped, seed=len(mapped))
    try:
        found = group.together(work, lambda rank, step: time.sleep(0.001), at_end=moving.stop)
    finally:
        moving.close()
    assert {name: answer for answers in found for name, answer in answers.items()} == wanted
    assert moving.moved > 0
    assert moving.map.version > 2
    assert not any(ended.reason for ended in moving.ended)
