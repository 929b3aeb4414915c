"""A shell moves experts all the time, and a rank is lost during a move: every token equals the single process's."""

import time
from pathlib import Path
from typing import Literal

import pytest

from serving.config.experts import ExpertsConfig
from tests.cases.nightly import mostly_nightly
from tests.group.live.moving_requests import requests
from tests.group.live.shelled_group import LostError, ShelledGroup
from tests.group.rank_threads import RankThreads
from tests.instance.native_pair import native_or_skip
from tests.model.random_checkpoint import write_random_checkpoint

SAME_AS = "tests/group/live/test_group_exact.py::test_tokens_are_exact_while_a_shell_moves_experts"


@pytest.mark.parametrize(
    ("slots", "lost"), mostly_nightly([("copied", None), ("copied", 2), ("mapped", 0)], [("copied", 2)], SAME_AS)
)
def test_tokens_are_exact_while_a_shell_moves_experts(
    shm: Path, slots: Literal["copied", "mapped"], lost: int | None
) -> None:
    native_or_skip()
    group = RankThreads(write_random_checkpoint(shm / "model", dtype="bfloat16"), "bfloat16", 3)
    work = requests(3, each=6)
    wanted = group.alone([spec for specs in work for spec in specs])
    shelled = ShelledGroup(group, shm, ExpertsConfig(redundant=2, slots=slots), seed=1)

    def between(rank: int, step: int) -> None:
        time.sleep(0.001)
        if rank == lost and step > 20 and shelled.busy:
            raise LostError

    try:
        found = shelled.run(work, between)
        assert shelled.members == [rank for rank in range(3) if rank != lost]
        for rank in shelled.members:
            assert {name: wanted[name] for name in found[rank]} == found[rank]
            assert len(found[rank]) == 6
        ledger = shelled.core.ledger
        assert ledger is not None
        ledger.check()
        assert ledger.map.version > 10
        told = shelled.core.journal.shown(0.0)
        assert told["outcomes"]["done"] > 0
        assert told["outcomes"].get("undone", 0) == (lost is not None)
        assert shelled.borrowed == 0, "there is room for all in own slots"
        assert [shelled.reserve(rank) for rank in shelled.members] == [0] * len(shelled.members), "given back"
    finally:
        shelled.close()
