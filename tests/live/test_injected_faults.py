"""The file through which a tester gives replicas their faults."""

import os
from pathlib import Path

import pytest

from serving.errors import ConfigError
from serving.faults.injected import LOOK_EVERY_S, FaultReader, FaultWriter, InjectedFault, faults_path, session_of


class Time:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def later(self, seconds: float = 2 * LOOK_EVERY_S) -> None:
        self.now += seconds


@pytest.fixture
def clock() -> Time:
    return Time()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return faults_path(tmp_path, "abc123")


def slow(serial: int = 1, target: str = "decode#1", until_s: float = 110.0) -> InjectedFault:
    return InjectedFault(serial, "slow_link", target, until_s, delay_s=0.5)


def test_a_fault_reaches_whom_it_is_for_until_its_end(path: Path, clock: Time) -> None:
    writer, mine, other = FaultWriter(path, clock), FaultReader(path, "decode#1", clock), FaultReader(path, "x", clock)
    assert mine.active("slow_link") is None
    writer.add(slow())
    clock.later()
    assert mine.active("slow_link") == slow()
    assert mine.active("full_disk") is None
    assert other.active("slow_link") is None
    clock.later(20.0)
    assert mine.active("slow_link") is None


def test_the_file_is_looked_at_only_now_and_then(path: Path, clock: Time) -> None:
    reader = FaultReader(path, "decode#1", clock)
    assert reader.active("slow_link") is None
    FaultWriter(path, clock).add(slow())
    assert reader.active("slow_link") is None, "not yet"
    clock.later()
    assert reader.active("slow_link") is not None


def test_each_fault_is_taken_once(path: Path, clock: Time) -> None:
    writer, reader = FaultWriter(path, clock), FaultReader(path, "m", clock)
    flips = [InjectedFault(serial, "bit_flip", "m", 110.0, draw=0.1 * serial) for serial in (1, 2)]
    for flip in flips:
        writer.add(flip)
    taken = [reader.take("bit_flip"), reader.take("bit_flip"), reader.take("bit_flip")]
    assert sorted(one.serial for one in taken if one is not None) == [1, 2]
    assert taken[2] is None


def test_a_second_run_against_the_same_system_has_its_faults_too(path: Path, clock: Time) -> None:
    reader = FaultReader(path, "m", clock)
    for until_s in (110.0, 210.0):
        FaultWriter(path, clock).add(InjectedFault(1, "bit_flip", "m", until_s))
        clock.later()
        assert reader.take("bit_flip") is not None
        assert reader.take("bit_flip") is None
        clock.later(100.0)


def test_clearing_ends_everything(path: Path, clock: Time) -> None:
    writer, reader = FaultWriter(path, clock), FaultReader(path, "decode#1", clock)
    writer.add(slow())
    writer.clear()
    writer.clear()
    assert not path.exists()
    assert reader.active("slow_link") is None
    writer.add(slow(2))
    clock.later()
    found = reader.active("slow_link")
    assert found is not None
    assert found.serial == 2, "what was cleared does not come back"


def test_rows_that_are_over_go_from_the_file(path: Path, clock: Time) -> None:
    writer = FaultWriter(path, clock)
    writer.add(slow(1, until_s=101.0))
    clock.later(5.0)
    writer.add(slow(2))
    assert path.read_text().count("serial") == 1


@pytest.mark.parametrize("content", [b"", b"nonsense", b'[{"serial": 1}]', b'[{"kind": "\xff"}]', b"[" * 100_000])
def test_a_file_that_makes_no_sense_is_no_fault(path: Path, clock: Time, content: bytes) -> None:
    path.write_bytes(content)
    assert FaultReader(path, "decode#1", clock).active("slow_link") is None


def test_a_link_is_not_followed(path: Path, clock: Time, tmp_path: Path) -> None:
    real = tmp_path / "real"
    FaultWriter(real, clock).add(slow())
    path.symlink_to(real)
    assert FaultReader(path, "decode#1", clock).active("slow_link") is None


def test_the_file_is_the_users_alone(path: Path, clock: Time) -> None:
    FaultWriter(path, clock).add(slow())
    assert os.stat(path).st_mode & 0o777 == 0o600


def test_a_folder_that_is_not_there_is_told(tmp_path: Path, clock: Time) -> None:
    with pytest.raises(ConfigError, match="replicas would not see the fault"):
        FaultWriter(tmp_path / "none" / "file", clock).add(slow())


@pytest.mark.parametrize(
    ("name", "session"),
    [
        ("cloudmatrix-ub-0a1b2c-d8d6fe510712-decode-4lm737c9", "0a1b2c"),
        ("cloudmatrix-ub-0a1b2c", ""),
        ("psm_429f869b", ""),
    ],
)
def test_a_segments_name_tells_its_session(name: str, session: str) -> None:
    assert session_of(name) == session
