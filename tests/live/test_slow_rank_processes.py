"""A slow rank is detected from the ranks' counters: the others only wait, and all tokens stay the same."""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from random import Random

import msgspec
import pytest

from serving.group.core.group_pace import paces
from serving.ids import SequenceId
from serving.values.expert_map import ExchangeFacts
from serving.values.sequence import SamplingParams, SequenceSpec
from tests.group.rank_processes import Order, RankProcesses, library_with_faults
from tests.group.rank_threads import SETTINGS, prompts
from tests.instance.native_pair import native_or_skip
from tests.model.random_checkpoint import write_random_checkpoint

RANKS, SLOW = 3, 1


@pytest.fixture
def shm() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="cloudmatrix-test-", dir="/dev/shm") as name:
        yield Path(name)


def work(rank: int) -> tuple[SequenceSpec, ...]:
    rng = Random(rank)
    return tuple(
        SequenceSpec(SequenceId(f"{rank}-{i}"), tuple(prompt), SamplingParams(temperature=0.0, max_tokens=30))
        for i, prompt in enumerate(prompts(4, rng))
    )


@pytest.mark.nightly("tests/group/test_group_executor.py::test_bytes_and_time_of_the_exchange_are_counted_by_peer")
def test_who_is_slow_is_seen_by_what_ranks_count(pytestconfig: pytest.Config, tmp_path: Path, shm: Path) -> None:
    native_or_skip()
    faults = library_with_faults(pytestconfig.cache.mkdir("native-faults"))
    folder = write_random_checkpoint(tmp_path, dtype="bfloat16")
    everything = tuple(spec for rank in range(RANKS) for spec in work(rank))
    with RankProcesses([Order(folder, "bfloat16", 0, 0, Path(), everything, library=faults)]) as one:
        wanted = one.alone()
    orders = [
        Order(folder, "bfloat16", rank, RANKS, shm / f"window-{rank}", work(rank), SETTINGS, faults,
              slow_at="gather:20000" if rank == SLOW else "", facts=shm / f"facts-{rank}")
        for rank in range(RANKS)
    ]  # fmt: skip
    with RankProcesses(orders) as group:
        group.form()
        answers, _ = group.run()
    assert {name: answer for found in answers.values() for name, answer in found.items()} == wanted
    counted = {
        rank: msgspec.msgpack.decode((shm / f"facts-{rank}").read_bytes(), type=ExchangeFacts) for rank in range(RANKS)
    }
    found = paces(counted)
    slow = found.pop(SLOW)
    assert slow.awaited > max((one.awaited for one in found.values()), default=0.0)
    others = [counted[rank].work.seconds / counted[rank].work.rows for rank in range(RANKS) if rank != SLOW]
    assert slow.seconds_per_row > 0
    assert counted[SLOW].work.seconds / counted[SLOW].work.rows > 2 * max(others)
