"""Files of the SSD tier: stored data is returned, all other data is detected, a full disk is an error, not damage."""

import errno
import os
import time
from pathlib import Path

import msgspec
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from serving.errors import SsdError
from serving.ids import BlockHash
from serving.kvpool.core.entry import Kind, Space
from serving.kvpool.live import ssd_files
from serving.kvpool.live.ssd_files import SsdFiles, SsdSlot, StoredEntry, encode_header

SPACE = Space("tenant", "layout")


def entry_of(data: bytes, number: int = 1, space: Space = SPACE, kind: Kind = Kind.CONTEXT) -> StoredEntry:
    return StoredEntry(space, BlockHash(number.to_bytes(16, "big")), kind, len(data), xxhash.xxh3_64_intdigest(data))


def read(files: SsdFiles, entry: StoredEntry) -> bytes | None:
    target = bytearray(entry.nbytes)
    return bytes(target) if files.read(entry, memoryview(target)) else None


@pytest.fixture
def files(tmp_path: Path) -> SsdFiles:
    return SsdFiles(tmp_path)


@pytest.mark.parametrize("size", [1, 511, 4096, (8 << 20) + 3])
def test_what_was_written_is_read(files: SsdFiles, size: int) -> None:
    data = os.urandom(size)
    entry = entry_of(data)
    files.write(entry, memoryview(data))
    assert read(files, entry) == data
    assert files.verify(entry)
    assert [file.entry for file in files.scan()] == [entry]


def test_an_absent_entry_is_not_read(files: SsdFiles) -> None:
    assert read(files, entry_of(b"data")) is None
    assert not files.verify(entry_of(b"data"))
    assert list(files.scan()) == []


def test_a_later_entry_takes_the_place_of_the_earlier(files: SsdFiles) -> None:
    old, new = entry_of(b"old"), entry_of(b"newer")
    files.write(old, memoryview(b"old"))
    files.write(new, memoryview(b"newer"))
    assert read(files, old) is None
    assert read(files, new) == b"newer"
    assert len(list(files.files())) == 1


def test_every_flipped_byte_is_noticed(files: SsdFiles) -> None:
    data = os.urandom(700)
    entry = entry_of(data)
    files.write(entry, memoryview(data))
    path = Path(files.path_of(entry.space, entry.hash, entry.kind))
    whole = path.read_bytes()
    body_end = len(encode_header(entry).rstrip(b"\0"))
    padding = range(body_end, len(whole) - len(data))  # unused bytes
    for at in (*range(0, body_end, 3), *range(len(whole) - len(data), len(whole), 53), len(whole) - 1):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1 :])
        assert at in padding or read(files, entry) is None, at
    path.write_bytes(whole)
    assert read(files, entry) == data


@pytest.mark.parametrize("length", [0, 5, 100, 511, 512, 600])
def test_a_short_file_is_noticed(files: SsdFiles, length: int) -> None:
    entry = entry_of(bytes(300))
    files.write(entry, memoryview(bytes(300)))
    os.truncate(files.path_of(entry.space, entry.hash, entry.kind), length)
    assert read(files, entry) is None
    assert not files.verify(entry)
    assert [file.entry for file in files.scan()] == [None]


def test_a_file_in_the_wrong_place_is_no_entry(files: SsdFiles, tmp_path: Path) -> None:
    entry = entry_of(b"data")
    files.write(entry, memoryview(b"data"))
    path = Path(files.path_of(entry.space, entry.hash, entry.kind))
    path.rename(path.with_name("0" * 32 + ".context"))
    assert [file.entry for file in files.scan()] == [None]


@pytest.mark.parametrize("damage", ["broken text", "endless nesting"])
def test_a_description_that_cannot_be_decoded_is_no_entry(files: SsdFiles, damage: str) -> None:
    """msgspec raises another error for these than for other malformed data; a server with such a file did not start."""
    entry = entry_of(b"data")
    files.write(entry, memoryview(b"data"))
    body = msgspec.msgpack.encode(entry)
    if damage == "broken text":
        body = body.replace(b"tenant", b"\xff" * 6)
    else:
        body = bytes([body[0] + 1]) + body[1:] + b"\x91" * 100_000  # one more field than this version has
    with pytest.raises(UnicodeDecodeError if damage == "broken text" else RecursionError):
        msgspec.msgpack.decode(body, type=StoredEntry)
    start = len(body) + 512
    prefix = ssd_files._PREFIX.pack(ssd_files.MAGIC, start, len(body), xxhash.xxh3_64_intdigest(body))
    path = Path(files.path_of(entry.space, entry.hash, entry.kind))
    path.write_bytes((prefix + body).ljust(start, b"\0") + b"data")
    assert read(files, entry) is None
    assert not files.verify(entry)
    assert [file.entry for file in files.scan()] == [None]


def test_leftovers_are_seen_as_such(files: SsdFiles) -> None:
    entry = entry_of(b"data")
    files.write(entry, memoryview(b"data"))
    path = Path(files.path_of(entry.space, entry.hash, entry.kind))
    path.with_name(path.name + ".tmp").write_bytes(b"half")
    (path.parent / "stray").symlink_to("/etc/hostname")
    assert sorted(str(file.entry is None) for file in files.scan()) == ["False", "True", "True"]


@pytest.mark.timeout(20)
def test_a_pipe_is_no_entry_and_nobody_waits_for_it(files: SsdFiles) -> None:
    """Opening a named pipe blocks until its other end is opened."""
    entry = entry_of(b"data")
    path = Path(files.path_of(entry.space, entry.hash, entry.kind))
    path.parent.mkdir(parents=True)
    for name in (path.name, path.name + ".tmp", "stray"):
        os.mkfifo(path.with_name(name))
    assert [file.entry for file in files.scan()] == [None] * 3
    assert read(files, entry) is None
    assert not files.verify(entry)
    with pytest.raises(SsdError, match="cannot write"):
        files.write(entry, memoryview(b"data"))
    files.write(entry, memoryview(b"data"))
    assert read(files, entry) == b"data", "in the way no longer"


@pytest.mark.parametrize("link", ["slot-0", "slot-0/data"])
def test_a_slot_that_leads_elsewhere_is_not_used(tmp_path: Path, link: str) -> None:
    """A server removes all non-entries at its start."""
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").touch()
    folder = tmp_path / "ssd"
    (folder / link).parent.mkdir(parents=True)
    (folder / link).symlink_to(precious)
    with pytest.raises(SsdError, match=f"{link} is a link"):
        SsdSlot.take(folder)
    assert [path.name for path in precious.iterdir()] == ["file"]


@given(st.lists(st.text(max_size=200), min_size=2, max_size=2, unique=True))
def test_no_namespace_can_leave_its_folder_or_meet_another(names: list[str]) -> None:
    files = SsdFiles(Path("/slot"))
    data = b"x"
    paths = [files.path_of(Space(name, "l"), entry_of(data).hash, Kind.CONTEXT) for name in names]
    assert paths[0] != paths[1]
    for path in paths:
        assert os.path.normpath(path) == path
        assert path.startswith("/slot/data/")
        assert path.count("/") == 6
        assert all(len(part) < 256 for part in path.split("/"))


def test_kinds_and_layouts_lie_apart(files: SsdFiles) -> None:
    entries = [
        entry_of(b"a"),
        entry_of(b"b", kind=Kind.MODEL),
        entry_of(b"c", space=Space("tenant", "other")),
        entry_of(b"d", space=Space("../tenant", "layout")),
    ]
    for entry, data in zip(entries, (b"a", b"b", b"c", b"d"), strict=True):
        files.write(entry, memoryview(data))
    assert [read(files, entry) for entry in entries] == [b"a", b"b", b"c", b"d"]


def test_reading_is_the_last_use_but_verifying_is_not(files: SsdFiles) -> None:
    entry = entry_of(b"data")
    files.write(entry, memoryview(b"data"))
    path = files.path_of(entry.space, entry.hash, entry.kind)
    os.utime(path, (1e9, 1e9))
    assert files.verify(entry)
    (file,) = files.scan()
    assert file.age_s == pytest.approx(time.time() - 1e9, abs=60)
    assert read(files, entry) == b"data"
    (file,) = files.scan()
    assert file.age_s < 60


def fail(patched: pytest.MonkeyPatch, number: int, *calls: str) -> None:
    """Make these system calls fail."""

    def failing(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    for call in calls:
        patched.setattr(os, call, failing)


@pytest.mark.parametrize(
    ("number", "remedy"), [(errno.ENOSPC, r"\[kvcache\] ssd_mib lower$"), (errno.EIO, "look after the disk$")]
)
def test_a_failed_write_leaves_everything_as_it_was(
    files: SsdFiles, monkeypatch: pytest.MonkeyPatch, number: int, remedy: str
) -> None:
    old, new = entry_of(b"old"), entry_of(b"x" * 5000)
    files.write(old, memoryview(b"old"))
    with monkeypatch.context() as patched:
        fail(patched, number, "write")
        with pytest.raises(SsdError, match=rf"{os.strerror(number)}\); .*{remedy}"):
            files.write(new, memoryview(b"x" * 5000))
    assert read(files, old) == b"old"
    assert len(list(files.files())) == 1


def test_a_disk_that_cannot_read_is_an_error(files: SsdFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = entry_of(b"data")
    files.write(entry, memoryview(b"data"))
    with monkeypatch.context() as patched:
        fail(patched, errno.EIO, "preadv", "scandir")
        with pytest.raises(SsdError):
            read(files, entry)
        with pytest.raises(SsdError):
            files.verify(entry)
        with pytest.raises(SsdError):
            list(files.scan())
    assert read(files, entry) == b"data"


def test_short_reads_and_writes_are_continued(files: SsdFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    write, preadv = os.write, os.preadv
    short = {
        "write": lambda fd, data: write(fd, data[:97]),
        "preadv": lambda fd, views, at: preadv(fd, [views[0][:89]], at),
    }
    for name, call in short.items():
        monkeypatch.setattr(os, name, call)
    data = os.urandom(3000)
    entry = entry_of(data)
    files.write(entry, memoryview(data))
    assert read(files, entry) == data


def test_removal(files: SsdFiles) -> None:
    entry = entry_of(b"data")
    files.write(entry, memoryview(b"data"))
    path = files.path_of(entry.space, entry.hash, entry.kind)
    files.unlink(path)
    files.unlink(path)
    assert list(files.files()) == []
    with pytest.raises(SsdError):
        files.unlink(os.path.dirname(path))


def test_a_folder_that_somebody_removed_is_made_again(files: SsdFiles, tmp_path: Path) -> None:
    entry = entry_of(b"data")
    files.write(entry, memoryview(b"data"))
    files.unlink(files.path_of(entry.space, entry.hash, entry.kind))
    (tmp_path / "data").rename(tmp_path / "elsewhere")
    with pytest.raises(SsdError):
        files.write(entry, memoryview(b"data"))
    files.write(entry, memoryview(b"data"))
    assert read(files, entry) == b"data"


def test_slots_are_taken_in_order_and_found_again(tmp_path: Path) -> None:
    first, second = SsdSlot.take(tmp_path / "new"), SsdSlot.take(tmp_path / "new")
    assert (first.index, second.index) == (0, 1)
    first.give_back()
    first.give_back()
    again = SsdSlot.take(tmp_path / "new")
    assert (again.index, again.path) == (0, first.path)
    again.give_back()
    second.give_back()


def test_an_unusable_folder_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(SsdError, match="ssd_path"):
        SsdSlot.take(tmp_path / "file")
