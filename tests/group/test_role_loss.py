"""A rank of either kind that is killed at any point of the exchange: the others' tokens stay the same."""

import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.cases.nightly import mostly_nightly
from tests.group.rank_processes import library_with_faults
from tests.group.rank_threads import checkpoint
from tests.group.split_group import FIRST_EXPERT, Setting, specs_of
from tests.group.split_processes import Answers, SplitProcesses
from tests.instance.native_pair import native_or_skip

WORK = {rank: tuple(specs_of(rank, "grammar" if rank else "plain")) for rank in range(2)}
EXPERT_PLACES = [(place, hit) for place in ("gather", "written", "answer") for hit in (1, 7, 20)] + [("hello", 1)]
ATTENTION_PLACES = [(place, hit) for place in ("stage", "ask", "wait", "sum") for hit in (1, 7, 20)]


@pytest.fixture
def shm() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="cloudmatrix-test-", dir="/dev/shm") as name:
        yield Path(name)


@pytest.fixture(scope="module")
def setting(tmp_path_factory: pytest.TempPathFactory) -> Setting:
    native_or_skip()
    folder, _ = checkpoint("bfloat16", tmp_path_factory.mktemp("model"))
    return Setting(folder, 2, 2)


@pytest.fixture(scope="module")
def faults(pytestconfig: pytest.Config, setting: Setting) -> Path:
    return library_with_faults(pytestconfig.cache.mkdir("native-faults"))


@pytest.fixture(scope="module")
def wanted(setting: Setting, faults: Path) -> Answers:
    with tempfile.TemporaryDirectory(prefix="cloudmatrix-test-", dir="/dev/shm") as name:
        with SplitProcesses(setting, WORK, Path(name), faults, -1, "") as group:
            return group.alone()


@pytest.mark.parametrize(
    ("place", "hit"),
    mostly_nightly(
        EXPERT_PLACES,
        [("gather", 7), ("answer", 7)],
        "tests/group/test_role_loss.py::test_a_killed_expert_rank_costs_a_redone_step",
    ),
)
def test_a_killed_expert_rank_costs_a_redone_step(
    place: str, hit: int, setting: Setting, faults: Path, wanted: Answers, shm: Path
) -> None:
    with SplitProcesses(setting, WORK, shm, faults, FIRST_EXPERT + 1, f"{place}:{hit}") as group:
        assert group.run()[0] == wanted
        assert group.epoch == 2


@pytest.mark.parametrize(
    ("place", "hit"),
    mostly_nightly(
        ATTENTION_PLACES,
        [("ask", 7)],
        "tests/group/test_role_loss.py::test_a_killed_attention_rank_costs_nobody_a_step",
    ),
)
def test_a_killed_attention_rank_costs_nobody_a_step(
    place: str, hit: int, setting: Setting, faults: Path, wanted: Answers, shm: Path
) -> None:
    """Its number is taken by another process, which computes the same requests anew, in the same epoch.

    Steps of all are in two micro-batches.
    """
    one_expert_rank = replace(setting, experts=1)
    with SplitProcesses(one_expert_rank, WORK, shm, faults, 1, f"{place}:{hit}") as group:
        assert group.run()[0] == wanted
        assert group.epoch == 1


def test_experts_of_a_killed_rank_are_masked_until_it_is_replaced(
    setting: Setting, faults: Path, wanted: Answers, shm: Path
) -> None:
    """Streams continue and are marked; once another process has joined, the same requests are exact and unmarked."""
    with SplitProcesses(setting, WORK, shm, faults, FIRST_EXPERT + 1, "answer:7", masks=True) as group:
        found, _ = group.run()
        assert found.keys() == wanted.keys()
        assert all(len(found[name].tokens) > 0 for name in found)
        assert sum(answer.masked for answer in found.values()) > 0
        assert {name: one for name, one in found.items() if not one.masked}.items() <= wanted.items()
        group.replace_expert_rank(FIRST_EXPERT + 1)
        assert group.run_again() == wanted
