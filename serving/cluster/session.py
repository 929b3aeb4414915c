"""One start of the system on this machine: its name, its private folder, the environment that Ray reads.

Does not import Ray: Ray reads the environment when it is imported, so `enter` must be called before.
"""

import contextlib
import fcntl
import os
import secrets
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from loadgen.server_address import ADDRESSES, ALIVE, POOL, is_held, own_folders, temporary_folder
from serving.cluster.host_environment import DASHBOARD_SITE, EVERY_HOST


@dataclass(frozen=True, slots=True)
class SystemSession:
    """Name and folder of one start."""

    name: str
    folder: Path
    token: str
    """Password of Ray's dashboard and job API."""

    @property
    def ray_folder(self) -> Path:
        """Folder of Ray's sessions, sockets and logs; short, because socket paths are limited to 107 bytes."""
        return self.folder / "ray"

    @property
    def logs(self) -> Path:
        """Folder of Ray's logs."""
        return self.ray_folder / "session_latest" / "logs"

    @property
    def pool_folder(self) -> Path:
        """Folder for the names of this start's memory servers, and for their SSD tier unless it has its own folder."""
        return self.folder / POOL

    def note_addresses(self, dashboard_url: str, gateway_url: str, model: Path) -> None:
        """Write addresses and the model's folder next to the dashboard's token, for commands of the same user."""
        fresh = self.folder / f"{ADDRESSES}.new"
        fresh.write_text(f"{dashboard_url}\n{gateway_url}\n{model}")
        os.replace(fresh, self.folder / ADDRESSES)  # atomic for concurrent readers

    @staticmethod
    def set_environment(more: Mapping[str, str]) -> None:
        """Set variables that Ray reads when its processes start. Effects: on this environment, which they inherit."""
        os.environ.update(more)

    def remove(self) -> None:
        """Delete the folder with all logs.

        Blocks: for up to 5 s, while processes that are about to end still write into it.
        """
        end = time.monotonic() + _LAST_WORDS_S
        shutil.rmtree(self.folder, ignore_errors=True)
        while self.folder.exists() and time.monotonic() < end:
            time.sleep(0.05)
            shutil.rmtree(self.folder, ignore_errors=True)


_LAST_WORDS_S = 5.0
"""Time within which Ray's workers detect the end of their raylet and exit too [s]; until then they write logs."""
_DASHBOARD_TOKEN = "dashboard-token"


def folder_of(name: str) -> Path:
    """Folder of a start of this user with this name."""
    return temporary_folder() / f"cloudmatrix-{name}"


def deployed_session(name: str) -> SystemSession:
    """Session of a system on an existing Ray: its folder has the same path on every host and is created when needed.

    It is not among the folders that a local start searches for crashed starts.
    """
    return SystemSession(name, Path("/tmp") / f"cloudmatrix.{name}", "")


def enter() -> SystemSession:
    """Create a private folder and set the environment that Ray reads.

    Effects: creates the folder; deletes the SSD tiers of starts that crashed, and after a week their logs; changes this
        process's environment, which every Ray process inherits.
    """
    name = secrets.token_hex(3)
    session = SystemSession(name, folder_of(name), secrets.token_hex(32))
    session.ray_folder.mkdir(parents=True, mode=0o700)
    session.folder.chmod(0o700)
    _remove_dead_pools(session.folder.parent)
    _remove_old_logs(session.folder.parent, time.time())
    session.pool_folder.mkdir(mode=0o700)
    _hold(session.pool_folder)
    token_path = session.folder / _DASHBOARD_TOKEN
    token_path.touch(mode=0o600)
    token_path.write_text(session.token)
    os.environ.update(
        RAY_AUTH_MODE="token",
        RAY_AUTH_TOKEN_PATH=str(token_path),
        RAY_TMPDIR=str(session.folder),
        PYTHONPATH=os.pathsep.join(filter(None, (str(DASHBOARD_SITE), os.environ.get("PYTHONPATH")))),
        TMPDIR=str(session.folder),  # leftovers of killed processes are removed with the folder
        # All nodes are on this machine: with this, Ray's mode for laptops, a node's address is 127.0.0.1, and Ray's own
        # processes listen on it, not on every interface; `_node_ip_address` would change it to the LAN address.
        RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER="0",
        # A dashboard that dies is detected immediately; one that starts late on a busy machine is waited for.
        RAY_DASHBOARD_STARTUP_TIMEOUT_S="300",
        # Serve's message about slow replicas ("waiting for the cluster to auto-scale") is wrong on a local cluster; the
        # launcher reports what is missing.
        RAY_SERVE_SLOW_STARTUP_WARNING_S="3600",
        # Longer periods of what Ray's processes do without work: counters of requests through Serve (by default ten
        # times a second), the dashboard's statistics of the host and of itself, ending workers without a task, probes
        # of Ray's event loops, reports of calls, checks of the object store's memory and disk.
        RAY_SERVE_METRICS_EXPORT_INTERVAL_MS="5000",
        REPORTER_UPDATE_INTERVAL_MS="10000",
        METRICS_RECORD_INTERVAL_S="30",
        RAY_kill_idle_workers_interval_ms="1000",
        RAY_io_context_monitor_probe_interval_ms="10000",
        RAY_task_events_report_interval_ms="5000",
        RAY_raylet_check_gc_period_milliseconds="1000",
        RAY_local_fs_monitor_interval_ms="1000",
        **EVERY_HOST,
    )
    return session


@dataclass(frozen=True, slots=True)
class RunningStart:
    """The system running on this machine.

    Args:
        dashboard_url, gateway_url: addresses. token: of the dashboard.
        pid: of its launcher. logs: folder of Ray's logs. model: folder of the model it serves.
    """

    name: str
    dashboard_url: str
    gateway_url: str
    token: str
    pid: int
    logs: Path
    model: Path


def running_starts() -> list[RunningStart]:
    """Running starts of this user, by name. Folders of other users, and of crashed starts, are skipped."""
    found = []
    for folder in sorted(own_folders(temporary_folder())):
        with contextlib.suppress(OSError):  # already stopped, or not up yet
            if is_held(mark := folder / POOL / ALIVE):
                dashboard, gateway, *more = (folder / ADDRESSES).read_text().splitlines()
                model = Path(*more[:1])  # none of a version before, which may run beside
                token, pid = (folder / _DASHBOARD_TOKEN).read_text(), int(mark.read_text() or 0)
                session = SystemSession(folder.name.partition("-")[2], folder, token)
                found.append(RunningStart(session.name, dashboard, gateway, token, pid, session.logs, model))
    return found


def _hold(folder: Path) -> None:
    """Mark a folder as in use until this process ends in any way: the kernel then releases the lock.

    The mark is renamed after it is locked: an unlocked mark would look like that of a crashed start.
    """
    unnamed = folder / f"{ALIVE}.new"
    fd = os.open(unnamed, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    os.write(fd, str(os.getpid()).encode())
    fcntl.flock(fd, fcntl.LOCK_EX)
    unnamed.rename(folder / ALIVE)


def _remove_dead_pools(parent: Path) -> None:
    """Delete SSD tiers whose start was killed: they can be large and cannot be read any more."""
    for folder in own_folders(parent):
        pool = folder / POOL
        with contextlib.suppress(OSError), (pool / ALIVE).open("r+b") as file:  # none, or held by a running start
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(pool, ignore_errors=True)


def _remove_old_logs(parent: Path, now: float) -> None:
    """Delete folders of starts that failed long ago; their logs are outdated."""
    for folder in own_folders(parent):
        with contextlib.suppress(OSError):
            mark = folder / POOL / ALIVE
            if now - _last_change(folder) > KEPT_LOGS_S and not (mark.exists() and is_held(mark)):
                shutil.rmtree(folder, ignore_errors=True)


def _last_change(folder: Path) -> float:
    """Time of the last write, by the folder's entries and the logs of the last session."""
    inside = [*folder.iterdir(), *(folder / "ray" / "session_latest" / "logs").glob("*")]
    return max(path.lstat().st_mtime for path in inside or [folder])


KEPT_LOGS_S = 7 * 24 * 3600.0
"""How long logs of a failed or killed start are kept."""
