"""One start of the system on this machine: its name, its private folder, the environment that Ray reads.

Imports no Ray: Ray reads the environment when it is imported, so `enter` has to come first.
"""

import contextlib
import fcntl
import os
import secrets
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Session:
    """Name and folder of one start."""

    name: str
    folder: Path
    token: str
    """Password of Ray's dashboard and job API."""

    @property
    def ray_folder(self) -> Path:
        """Where Ray keeps sessions, sockets and logs; short, because socket paths have a limit of 107 bytes."""
        return self.folder / "ray"

    @property
    def logs(self) -> Path:
        """Folder of Ray's logs."""
        return self.ray_folder / "session_latest" / "logs"

    @property
    def pool_folder(self) -> Path:
        """Where memory servers of this start keep their names, and their SSD tier unless it has its own folder."""
        return self.folder / _POOL

    def remove_pool(self) -> None:
        """Delete what the memory servers of this start left on disk."""
        shutil.rmtree(self.pool_folder, ignore_errors=True)

    def remove(self) -> None:
        """Delete the folder with all logs."""
        shutil.rmtree(self.folder, ignore_errors=True)


_POOL = "kvcache"
_ALIVE = "alive"


def enter() -> Session:
    """Make a private folder and set what Ray reads from the environment.

    Effects: creates the folder; deletes the SSD tiers of starts that crashed; changes this process's environment, which
        every Ray process inherits.
    """
    name = secrets.token_hex(3)
    session = Session(name, _temporary() / f"cloudmatrix-{name}", secrets.token_hex(32))
    session.ray_folder.mkdir(parents=True, mode=0o700)
    session.folder.chmod(0o700)
    _remove_dead_pools(session.folder.parent)
    session.pool_folder.mkdir(mode=0o700)
    _hold(session.pool_folder)
    token_path = session.folder / "dashboard-token"
    token_path.touch(mode=0o600)
    token_path.write_text(session.token)
    os.environ.update(
        RAY_AUTH_MODE="token",
        RAY_AUTH_TOKEN_PATH=str(token_path),
        RAY_TMPDIR=str(session.folder),
        TMPDIR=str(session.folder),  # what killed processes leave behind goes with the folder
        RAY_USAGE_STATS_ENABLED="0",
        RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO="0",
        # An unhealthy replica is one that does not move: to wait for it would keep its NPUs from its replacement.
        RAY_SERVE_FORCE_STOP_UNHEALTHY_REPLICAS="1",
        # Ray runs workers at niceness 15, behind every other process of the machine; these ones serve.
        RAY_worker_niceness="0",
        # OpenMP workers may spin some microseconds within a step, but not between steps: they would take the cores from
        # the gateway and from each other.
        GOMP_SPINCOUNT="2000",
    )
    return session


def _hold(folder: Path) -> None:
    """Mark a folder as in use until this process ends, however it ends: the kernel then gives the lock back."""
    fd = os.open(folder / _ALIVE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(fd, fcntl.LOCK_EX)


def _remove_dead_pools(parent: Path) -> None:
    """Delete SSD tiers whose start was killed: they can be large, and nobody can read them any more."""
    for mark in parent.glob(f"cloudmatrix-*/{_POOL}/{_ALIVE}"):
        with contextlib.suppress(OSError), mark.open("r+b") as file:  # not ours, or held by a living start
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(mark.parent, ignore_errors=True)


LONGEST_PARENT = 13
"""Ray's longest socket path below a session is 94 bytes; the kernel takes 107."""


def _temporary() -> Path:
    """The user's temporary folder, or /tmp when sockets below it would have too long a path."""
    own = tempfile.gettempdir()
    return Path(own if len(own) <= LONGEST_PARENT else "/tmp")
