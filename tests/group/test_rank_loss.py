"""A rank that dies at any point of the exchange delays the others only briefly: their tokens stay the same."""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from serving.ids import SequenceId
from serving.values.sequence import SamplingParams, SequenceSpec
from tests.cases.nightly import mostly_nightly
from tests.group.rank_processes import Answers, Order, RankProcesses, library_with_faults
from tests.group.rank_threads import SETTINGS, prompts
from tests.instance.native_grammars import grammar_sampling
from tests.instance.native_pair import native_or_skip
from tests.model.random_checkpoint import write_random_checkpoint

RANKS = 3
PLACES = ("ask", "wait", "stage", "gather", "written", "answer", "sum", "hello")


def often(place: str) -> tuple[int, ...]:
    """How often a place is passed before the death: of another rank each, at first, early and late."""
    return (1,) if place == "hello" else (1, 11, 21)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    native_or_skip()
    return write_random_checkpoint(tmp_path_factory.mktemp("model"), dtype="bfloat16")


def work(rank: int) -> tuple[SequenceSpec, ...]:
    rng = Random(rank)
    plain = SamplingParams(temperature=0.0, max_tokens=12)
    samplings = (plain, grammar_sampling(rank, 12), plain)
    return tuple(
        SequenceSpec(SequenceId(f"{rank}-{i}"), tuple(prompt), sampling)
        for i, (prompt, sampling) in enumerate(zip(prompts(3, rng), samplings, strict=True))
    )


@pytest.fixture(scope="module")
def faults(pytestconfig: pytest.Config, folder: Path) -> Path:
    return library_with_faults(pytestconfig.cache.mkdir("native-faults"))


@pytest.fixture(scope="module")
def wanted(folder: Path, faults: Path) -> Answers:
    everything = tuple(spec for rank in range(RANKS) for spec in work(rank))
    with RankProcesses([Order(folder, "bfloat16", 0, 0, Path(), everything, library=faults)]) as one:
        return one.alone()


@pytest.fixture
def shm() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="cloudmatrix-test-", dir="/dev/shm") as name:
        yield Path(name)


DEATHS = [(place, hits) for place in PLACES for hits in often(place)]


@pytest.mark.parametrize(
    ("place", "hits"),
    mostly_nightly(DEATHS, DEATHS[::9], "tests/group/test_rank_loss.py::test_death_at_a_place_of_the_exchange"),
)
def test_death_at_a_place_of_the_exchange(
    place: str, hits: int, folder: Path, faults: Path, wanted: Answers, shm: Path
) -> None:
    victim = hits % RANKS
    orders = [
        Order(folder, "bfloat16", rank, RANKS, shm / f"window-{rank}", work(rank), SETTINGS, faults,
              f"{place}:{hits}" if rank == victim else "")
        for rank in range(RANKS)
    ]  # fmt: skip
    with RankProcesses(orders, seed=hits) as group:
        group.form()
        answers, _ = group.run()
        assert [process.exitcode for process in group.dead] == [-9]
    assert answers == {rank: wanted_of(rank, wanted) for rank in range(RANKS) if rank != victim}


def test_another_process_takes_the_place_of_a_dead_one(folder: Path, faults: Path, wanted: Answers, shm: Path) -> None:
    """The new process joins during the others' steps, with the same work, and rows are sent to all ranks again."""
    orders = [
        Order(folder, "bfloat16", rank, RANKS, shm / f"window-{rank}", work(rank), SETTINGS, faults,
              "gather:3" if rank == 1 else "")
        for rank in range(RANKS)
    ]  # fmt: skip
    again = Order(folder, "bfloat16", 1, RANKS, shm / "window-again", work(1), SETTINGS, faults)
    with RankProcesses(orders, replacements={1: again}) as group:
        group.form()
        answers, _ = group.run()
        assert len(group.dead) == 1
    assert answers == {rank: wanted_of(rank, wanted) for rank in range(RANKS)}


def wanted_of(rank: int, wanted: Answers) -> Answers:
    return {spec.sequence_id: wanted[spec.sequence_id] for spec in work(rank)}
