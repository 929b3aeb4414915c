"""The file of a segment: foreign files, incomplete ones, and the leftovers of a crash."""

import contextlib
import os
from pathlib import Path

import pytest

from hardware.errors import SpecError, UbCorruptError, UbExistsError, UbFullError, UbMissingError
from hardware.ub import UbSegment, remove_stale
from hardware.ub.file import open_file, read_header
from hardware.ub.region import HEADER, PAGE, VERSION
from hardware.units import MIB
from tests.hardware.ub.processes import Processes


def overwrite(path: Path, field: str, value: int) -> None:
    dtype, offset = HEADER.fields[field][:2]  # type: ignore[index]
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(value.to_bytes(dtype.itemsize, "little"))


def test_the_file_is_private_and_whole_and_made_once(shm: Path) -> None:
    with UbSegment.create(shm / "ub", MIB) as segment:
        status = os.stat(segment.path)
        assert status.st_mode & 0o777 == 0o600
        assert status.st_size == PAGE + 1024 * 128 + MIB
        assert status.st_blocks * 512 >= status.st_size
        segment.remove()
    with pytest.raises(UbMissingError, match="no UB segment at"):
        UbSegment.attach(shm / "ub")
    with pytest.raises(UbMissingError, match=r"directory .* does not exist"):
        UbSegment.create(shm / "no" / "ub", MIB)
    UbSegment.create(shm / "ub", MIB).close()
    with pytest.raises(UbExistsError, match="already there"):
        UbSegment.create(shm / "ub", MIB)


def test_links_folders_and_files_of_others_are_refused(shm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    UbSegment.create(shm / "ub", MIB).close()
    (shm / "link").symlink_to(shm / "ub")
    (shm / "folder").mkdir()
    os.mkfifo(shm / "pipe")
    for name in ("link", "folder"):
        with pytest.raises(UbCorruptError, match="cannot be opened"):
            UbSegment.attach(shm / name)
    with pytest.raises(UbCorruptError, match="no plain file"):
        open_file(shm / "pipe")
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(UbCorruptError, match="of this user"):
        UbSegment.attach(shm / "ub")


@pytest.mark.parametrize("content", [b"hello", b"\0" * 8 + b"x" * 100, b"x" * 8192])
def test_a_file_that_is_something_else_is_left_alone(shm: Path, content: bytes) -> None:
    (shm / "ub").write_bytes(content)
    with pytest.raises(UbCorruptError, match="is no UB segment"):
        UbSegment.attach(shm / "ub")
    with pytest.raises(UbExistsError, match="already there"):
        UbSegment.create(shm / "ub", MIB)
    assert remove_stale(shm, "ub") == []
    assert (shm / "ub").read_bytes() == content


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("version", VERSION + 1, "no UB segment of version"),
        ("capacity", 2 * MIB, "its header says"),
        ("max_regions", 4096, "its header says"),
        ("data_start", 0, "its header says"),
    ],
)
def test_a_spoilt_header_is_found(shm: Path, field: str, value: int, message: str) -> None:
    with UbSegment.create(shm / "ub", MIB) as segment:
        overwrite(segment.path, field, value)
        with pytest.raises(UbCorruptError, match=message):
            UbSegment.attach(segment.path)
        with pytest.raises(UbCorruptError, match=message):
            segment.check()


def test_a_cut_file_is_found(shm: Path) -> None:
    UbSegment.create(shm / "ub", MIB).close()
    os.truncate(shm / "ub", MIB // 2)
    with pytest.raises(UbCorruptError, match="its header says"):
        UbSegment.attach(shm / "ub")


@pytest.mark.parametrize("content", [b"", b"\0" * 5, b"\0" * 100_000])
def test_a_half_made_file_is_refused_and_removed(shm: Path, content: bytes) -> None:
    (shm / "ub").write_bytes(content)
    with pytest.raises(UbCorruptError, match="half made"):
        UbSegment.attach(shm / "ub")
    assert remove_stale(shm, "ub") == [shm / "ub"]


@pytest.mark.parametrize("written", range(3))
def test_a_maker_that_is_killed_between_two_writes_blocks_nobody(
    shm: Path, written: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    pwrite, left = os.pwrite, 0

    def killed_later(fd: int, content: bytes, offset: int) -> int:
        nonlocal left
        if not left:
            raise KeyboardInterrupt
        left -= 1
        return pwrite(fd, content, offset)

    left = written
    with monkeypatch.context() as dying, contextlib.suppress(KeyboardInterrupt):
        dying.setattr(os, "pwrite", killed_later)
        UbSegment.create(shm / "ub", MIB).close()
    assert remove_stale(shm, "ub") == [shm / "ub"] or UbSegment.attach(shm / "ub").capacity_bytes == MIB


def test_no_room_leaves_no_file(shm: Path) -> None:
    where = os.statvfs(shm)
    if where.f_blocks == 0:
        pytest.skip("this shared memory has no limit")
    with pytest.raises(UbFullError, match="request less UB memory"):
        UbSegment.create(shm / "ub", 2 * where.f_blocks * where.f_frsize)
    assert not (shm / "ub").exists()


def test_which_segments_are_stale(shm: Path, processes: Processes) -> None:
    pid, made = processes.run("create", path=str(shm / "ub_0"), size_bytes=MIB)
    live = UbSegment.create(shm / "ub_1", MIB)
    (shm / "other").touch()
    assert remove_stale(shm, "ub_") == []
    processes.kill(pid)
    fd = open_file(shm / "ub_0")
    header = read_header(fd, shm / "ub_0")
    os.close(fd)
    assert header is not None
    assert header.session == made["session"]
    assert remove_stale(shm, "ub_") == [shm / "ub_0"]
    assert remove_stale(shm, "ub_") == []
    assert sorted(path.name for path in shm.iterdir()) == ["other", "ub_1"]
    live.remove()
    path = shm / "ub_0"
    owner, _ = processes.run("create", path=str(path), size_bytes=MIB)
    holder, _ = processes.run("allocate", path=str(path), nbytes=100, fill=1)
    processes.kill(owner)
    assert remove_stale(shm, "ub_") == []
    processes.kill(holder)
    assert remove_stale(shm, "ub_") == [path]
    (shm / "ub_0").touch()
    pid, _ = processes.run("hold_lock", path=str(shm / "ub_0"))
    assert remove_stale(shm, "ub_") == []
    processes.kill(pid)
    assert remove_stale(shm, "ub_") == [shm / "ub_0"]


def test_removal_passes_over_what_is_gone_or_cannot_be_opened(shm: Path) -> None:
    with UbSegment.create(shm / "ub_0", MIB) as segment:
        (shm / "ub_0").unlink()
        segment.remove()
    assert list(shm.iterdir()) == []
    (shm / "ub_folder").mkdir()
    (shm / "ub_link").symlink_to(shm / "nowhere")
    assert remove_stale(shm, "ub_") == []
    with pytest.raises(SpecError, match="needs a prefix"):
        remove_stale(shm, "")
    with pytest.raises(UbMissingError, match="does not exist"):
        remove_stale(shm / "no", "ub_")
