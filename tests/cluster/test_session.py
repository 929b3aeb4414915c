"""Folders of a start: the files of a crashed start are removed, those of a living one remain."""

import contextlib
import fcntl
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from loadgen.server_address import is_held
from serving.cluster import session
from serving.cluster.session import SystemSession

ENTER = """
from serving.cluster.session import enter
session = enter()
(session.pool_folder / "ssd").mkdir()
(session.pool_folder / "ssd" / "block").write_bytes(b"bytes")
print(session.folder, flush=True)
input()
"""
TELL = """
import os
from serving.cluster.session import enter
for before in ("", "/somewhere/else"):
    os.environ["PYTHONPATH"] = before
    enter()
    print(os.environ["PYTHONPATH"])
from ray._private.ray_constants import RAY_DASHBOARD_STARTUP_TIMEOUT_S
print(RAY_DASHBOARD_STARTUP_TIMEOUT_S)
"""
EARLY = """
import os, signal, socket, sys
from serving.cli import main
from serving.launch import preflight

signal.signal(signal.SIGINT, signal.default_int_handler)  # also in a shell's background job, which is deaf to it

class Early:
    def find_spec(self, name, path, target=None):
        if name == "serving.launch.launch":  # with it comes Ray, which takes seconds
            os.kill(os.getpid(), signal.SIGINT)

preflight.preflight = lambda config, **_: None
sys.meta_path.insert(0, Early())
with socket.create_server(("127.0.0.1", 0)) as some:
    port = some.getsockname()[1]
sys.exit(main(["serve", "--port", str(port)]))
"""
REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """A folder with a path short enough for Ray's sockets; a longer one is not used for sessions."""
    folder = Path("/tmp", f"s{secrets.token_hex(3)}")
    folder.mkdir()
    yield folder
    shutil.rmtree(folder)


def look_through(folder: Path) -> None:
    """Treatment by each new start of the folders of earlier ones."""
    session._remove_dead_pools(folder)
    session._remove_old_logs(folder, time.time())


class Start:
    """A process that entered a session and waits."""

    def __init__(self, temporary: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", ENTER],
            cwd=REPOSITORY,
            env={**os.environ, "TMPDIR": str(temporary)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        self.folder = Path(self._process.stdout.readline().strip())
        self.block = self.folder / "kvcache" / "ssd" / "block"

    @property
    def pid(self) -> int:
        return self._process.pid

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()


def test_whoever_reads_the_addresses_reads_whole_ones(tmp_path: Path) -> None:
    start = SystemSession("s", tmp_path, "token")
    start.note_addresses("http://127.0.0.1:1", "http://127.0.0.1:8000", Path("/one"))
    with (tmp_path / "addresses").open() as reading:
        start.note_addresses("http://127.0.0.1:2", "http://127.0.0.1:9000", Path("/two"))
        assert reading.read() == "http://127.0.0.1:1\nhttp://127.0.0.1:8000\n/one", "it was not written over"
    assert [path.read_text() for path in tmp_path.iterdir()] == ["http://127.0.0.1:2\nhttp://127.0.0.1:9000\n/two"]


def test_a_running_start_is_found_with_its_launcher_and_a_dead_one_is_not(
    short_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(short_folder))
    start = Start(short_folder)
    try:
        SystemSession("s", start.folder, "").note_addresses("http://d", "http://g", Path("/model"))
        (found,) = session.running_starts()
        assert (found.pid, found.gateway_url, found.model) == (start.pid, "http://g", Path("/model"))
        assert found.logs == start.folder / "ray" / "session_latest" / "logs"
    finally:
        start.kill()
    assert session.running_starts() == []


def test_disk_tiers_of_crashed_starts_go_and_those_of_living_ones_stay(short_folder: Path) -> None:
    crashed, living = Start(short_folder), Start(short_folder)
    crashed.kill()
    assert crashed.block.exists()
    third = Start(short_folder)
    try:
        assert not crashed.block.exists()
        assert crashed.folder.exists(), "its logs may be wanted"
        assert living.block.exists()
        assert third.folder.stat().st_mode & 0o777 == 0o700
    finally:
        living.kill()
        third.kill()


def test_what_ray_inherits(short_folder: Path) -> None:
    """The page's folder comes first on the path, and a dashboard that a busy machine starts late is waited for."""
    environment = {**os.environ, "TMPDIR": str(short_folder)}
    told = subprocess.check_output([sys.executable, "-c", TELL], cwd=REPOSITORY, env=environment, text=True)
    alone, before, patience_s = told.splitlines()
    site, *rest = before.split(os.pathsep)
    assert (Path(site) / "sitecustomize.py").exists()
    assert (alone, rest) == (site, ["/somewhere/else"])
    assert int(patience_s) == 300


def test_a_folder_goes_although_somebody_still_writes_into_it(tmp_path: Path) -> None:
    ending = SystemSession("abc123", tmp_path / "session", "token")
    ending.folder.mkdir()
    end = time.monotonic() + 0.2

    def write_on() -> None:
        while time.monotonic() < end:  # like a worker that has not noticed yet that its raylet has ended
            with contextlib.suppress(OSError):
                (ending.folder / "logs").mkdir(exist_ok=True)
                (ending.folder / "logs" / secrets.token_hex(4)).touch()

    with ThreadPoolExecutor() as pool:
        late = pool.submit(write_on)
        ending.remove()
        late.result()
    assert not ending.folder.exists()


def test_two_starts_at_the_same_moment(short_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A start that looks for crashed ones while another one marks its folder must not count that one as crashed."""
    folder = short_folder / "cloudmatrix-abc" / "kvcache"
    folder.mkdir(parents=True)
    flock = fcntl.flock

    def lock(file: int, how: int) -> None:
        monkeypatch.setattr(fcntl, "flock", flock)
        look_through(short_folder)  # the other start, at the worst moment
        flock(file, how)

    monkeypatch.setattr(fcntl, "flock", lock)
    session._hold(folder)
    look_through(short_folder)
    assert (folder / "alive").exists()
    assert is_held(folder / "alive")
    assert [path.name for path in folder.iterdir()] == ["alive"]


def test_who_ends_a_start_at_once_leaves_nothing(short_folder: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(short_folder)}
    ended = subprocess.run([sys.executable, "-c", EARLY], cwd=REPOSITORY, env=environment, timeout=50, check=False)
    assert ended.returncode == 130
    assert not list(short_folder.glob("cloudmatrix-*"))


def old_start(parent: Path, name: str, age_s: float) -> Path:
    """The leftovers of a killed start: a mark that no process holds, and logs."""
    folder = parent / f"cloudmatrix-{name}"
    (folder / "kvcache").mkdir(parents=True)
    (folder / "kvcache" / "alive").touch()
    (folder / "dashboard-token").write_text("token")
    then = time.time() - age_s
    for path in (*folder.rglob("*"), folder):
        os.utime(path, (then, then))
    return folder


def test_logs_of_starts_that_failed_go_after_a_time(short_folder: Path) -> None:
    old, recent, living = (
        old_start(short_folder, name, age_s)
        for name, age_s in (("old", session.KEPT_LOGS_S + 60), ("recent", session.KEPT_LOGS_S - 60), ("living", 1e9))
    )
    unmarked = old_start(short_folder, "unmarked", 1e9)
    shutil.rmtree(unmarked / "kvcache")
    os.utime(unmarked, (0, 0))
    written = old_start(short_folder, "written", 1e9)
    (written / "ray" / "session_1" / "logs").mkdir(parents=True)
    (written / "ray" / "session_1" / "logs" / "gcs.log").touch()
    (written / "ray" / "session_latest").symlink_to("session_1")
    for path in (written, written / "ray"):
        os.utime(path, (0, 0))
    other = short_folder / "something-else"
    other.mkdir()
    os.utime(other, (0, 0))
    with (living / "kvcache" / "alive").open("r+b") as mark:
        fcntl.flock(mark, fcntl.LOCK_EX)
        look_through(short_folder)
    left = {path.name for path in short_folder.iterdir()}
    assert left == {recent.name, living.name, written.name, other.name}
    assert not old.exists()


def test_folders_of_others_and_links_are_passed_over(short_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a folder that is writable for all, another user can create one that looks like ours."""
    theirs = old_start(short_folder, "theirs", 1e9)
    precious = old_start(short_folder / "elsewhere", "precious", 1e9)
    (short_folder / "cloudmatrix-link").symlink_to(precious)
    with monkeypatch.context() as patch:
        patch.setattr(os, "getuid", lambda: os.geteuid() + 1)
        look_through(short_folder)
    assert (theirs / "kvcache" / "alive").exists(), "another user's"
    look_through(short_folder)
    assert not theirs.exists()
    assert (precious / "kvcache" / "alive").exists(), "reached by a link only"
