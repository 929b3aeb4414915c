"""Exchange between ranks: exact between threads and between processes, under sanitizers, and with a rank killed."""

from pathlib import Path

import pytest

from hardware.errors import SpecError
from hardware.ub import UbSegment
from hardware.ub.exchange_layout import WINDOW_MAGIC, WINDOW_VERSION, Announcement, WindowLayout, WindowShape
from tests.cases.nightly import mostly_nightly
from tests.hardware.ub.exchange_programs import program, run

pytestmark = pytest.mark.timeout(300)  # compiling takes longer than running

CASE = WindowShape(3, max_rows=9, top_k=3, row_bytes=208, result_bytes=208)
"""Shape of `exchange_case.h`; ranks vary."""


@pytest.fixture(scope="module")
def folder(pytestconfig: pytest.Config) -> Path:
    return pytestconfig.cache.mkdir("exchange")


SANITIZERS = mostly_nightly(
    ["plain", "address", "thread"],
    ["plain", "thread"],
    "tests/hardware/ub/test_exchange.py::test_threads_get_the_bits_of_one_process",
)


@pytest.mark.parametrize("sanitizer", SANITIZERS)
def test_threads_get_the_bits_of_one_process(folder: Path, sanitizer: str) -> None:
    run([program("exchange_selftest", folder, sanitizer), "threads", 100 if sanitizer == "plain" else 20])


@pytest.mark.parametrize("sanitizer", SANITIZERS)
def test_every_wait_ends_by_its_name(folder: Path, sanitizer: str) -> None:
    run([program("exchange_selftest", folder, sanitizer), "endings"])


def processes(folder: Path, shm: Path, roles: str, steps: int, place: str = "", hit: int = 0) -> str:
    """Run ranks over windows in a UB segment. Rank 1 is killed at the `hit`th pass of `place`.

    Args:
        roles: `a`ttention, `e`xperts or `b`oth for each rank.
    """
    ranks = len(roles)
    layout = WindowLayout.of(WindowShape(ranks, CASE.max_rows, CASE.top_k, CASE.row_bytes, CASE.result_bytes))
    with UbSegment.create(shm / "ub", 1 << 20) as segment:
        regions = [segment.allocate(layout.bytes, f"window {number}") for number in range(2 * ranks)]
        offsets = [region.offset for region in regions]
        return run([program("exchange_processes", folder), segment.path, steps, 1, place, hit, roles, *offsets])


@pytest.mark.parametrize("roles", ["bb", "bbb", "bbbb", "ae", "aae", "eae", "aaaee"])
def test_processes_get_the_bits_of_one_process(folder: Path, shm: Path, roles: str) -> None:
    assert processes(folder, shm, roles, steps=200) == "killed 0 interrupted 0\n"


@pytest.mark.parametrize("place", ["hello", "stage", "ask", "wait", "gather", "write", "answer", "sum"])
def test_others_redo_the_step_of_a_killed_rank(folder: Path, shm: Path, place: str) -> None:
    """Their bits do not change, though the dead rank's experts are theirs now."""
    said = processes(folder, shm, "bbb", steps=20, place=place, hit=1 if place == "hello" else 8)
    assert said == "killed 1 interrupted 2\n" or (place == "hello" and said.startswith("killed 1 "))


@pytest.mark.parametrize("place", ["hello", "gather", "write", "answer"])
def test_sessions_redo_the_step_of_a_killed_rank_with_experts(folder: Path, shm: Path, place: str) -> None:
    said = processes(folder, shm, "aeea", steps=20, place=place, hit=1 if place == "hello" else 8)
    late = said == "killed 1 interrupted 2\n"  # a session may come after the death: none waits for the other
    assert late or said == "killed 1 interrupted 3\n" or (place == "hello" and said.startswith("killed 1 "))


@pytest.mark.parametrize("place", ["stage", "ask", "wait", "sum"])
def test_nobody_redoes_a_step_for_a_killed_session(folder: Path, shm: Path, place: str) -> None:
    """Another process takes its number in the same epoch."""
    assert processes(folder, shm, "eaae", steps=20, place=place, hit=8) == "killed 1 interrupted 0\n"


def test_the_last_two_ranks_become_one(folder: Path, shm: Path) -> None:
    assert processes(folder, shm, "bb", steps=20, place="write", hit=20) == "killed 1 interrupted 1\n"


@pytest.mark.parametrize("shape", [CASE, WindowShape(64, 1, 1, 1, 1), WindowShape(4, 512, 8, 7172, 14336)])
def test_python_and_the_headers_agree(folder: Path, shape: WindowShape) -> None:
    sizes = [shape.ranks, shape.max_rows, shape.top_k, shape.row_bytes, shape.result_bytes]
    words = run([program("exchange_selftest", folder), "layout", *sizes]).split()
    layout = WindowLayout.of(shape)
    assert dict(zip(words[::2], map(int, words[1::2]), strict=True)) == {
        "possible": 1,
        "magic": WINDOW_MAGIC,
        "version": WINDOW_VERSION,
        **{name: getattr(layout, name) for name in WindowLayout.__slots__},
        "word": Announcement(3, 70000, 5, 77).pack(),
    }


@pytest.mark.parametrize("sizes", [(65, 1, 1, 1, 1), (2, 1 << 17, 2, 1, 1), (2, 0, 1, 1, 1), (2, 1, 65, 1, 1)])
def test_impossible_shapes_are_refused_by_both(folder: Path, sizes: tuple[int, int, int, int, int]) -> None:
    with pytest.raises(SpecError, match="cannot be a window"):
        WindowShape(*sizes)
    assert run([program("exchange_selftest", folder), "layout", *sizes]).startswith("possible 0 ")


def test_an_announcement_survives_its_word() -> None:
    said = Announcement(epoch=16383, step=(1 << 22) - 1, round=1023, count=(1 << 18) - 1)
    assert said.pack() == (1 << 64) - 1
    assert Announcement.unpack(said.pack()) == said
