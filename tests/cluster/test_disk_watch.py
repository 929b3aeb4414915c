"""A full disk is reported: before a start, while it waits, and while it serves."""

from pathlib import Path

import pytest

from hardware.units import MIB
from serving.cluster import disk_watch
from serving.cluster.disk_watch import DiskRoom, DiskWatch, disk_room, full_disk, full_line
from serving.config.model import ModelConfig
from serving.config.serve import ServeConfig
from serving.errors import ConfigError
from serving.launch import preflight

FOLDER = Path("/tmp/cloudmatrix-abc123")
ROOMY, NO_BYTES, NO_FILES = DiskRoom(500 * MIB, 10_000), DiskRoom(3 * MIB, 10_000), DiskRoom(500 * MIB, 3)


class Disk:
    """A watched disk, and the reports about it."""

    def __init__(self) -> None:
        self.room, self.now = ROOMY, 0.0
        self.said: list[str] = []
        self.watch = DiskWatch(FOLDER, self.said.append, lambda _: self.room, lambda: self.now)

    def pass_time(self, seconds: float) -> None:
        """Poll four times a second, as the launcher does."""
        for _ in range(int(seconds * 4)):
            self.now += 0.25
            self.watch.tend()


@pytest.mark.parametrize(("room", "left"), [(NO_BYTES, "3.00 MiB left"), (NO_FILES, "3 more files left")])
def test_a_full_disk_is_said_once_a_minute_and_its_end_once(room: DiskRoom, left: str) -> None:
    disk = Disk()
    disk.pass_time(100)
    assert disk.said == []
    disk.room = room
    disk.pass_time(6)
    assert len(disk.said) == 1
    assert left in disk.said[0]
    assert "what dies is not replaced" in disk.said[0]
    assert str(FOLDER) in disk.said[0]
    disk.pass_time(90)
    assert len(disk.said) == 2
    disk.room = ROOMY
    disk.pass_time(30)
    assert disk.said[2:] == [f"the disk of {FOLDER} has room again"]


def test_a_disk_that_says_nothing_is_not_full() -> None:
    def silent(_: Path) -> DiskRoom:
        raise OSError("gone")

    said: list[str] = []
    DiskWatch(FOLDER, said.append, silent).tend()
    assert said == []


def test_real_disks_are_asked_also_for_a_folder_that_is_not_there_yet(tmp_path: Path) -> None:
    assert disk_room(tmp_path / "not" / "yet").bytes > 0
    assert full_line(tmp_path, ROOMY) is None


def test_a_start_on_a_full_disk_is_refused_before_anything_heavy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_watch, "disk_room", lambda _: NO_BYTES)
    assert full_disk(FOLDER) is not None
    storyteller = Path(__file__).parents[2] / "deploy" / "models" / "storyteller"
    with pytest.raises(ConfigError, match=r"is full \(3.00 MiB left\).*TMPDIR"):
        preflight.preflight(ServeConfig(ModelConfig(storyteller)))
