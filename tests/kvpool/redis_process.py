"""A real Redis for one test: on a socket in its folder, without persistence by default."""

import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest
import redis

REDIS_SERVER = shutil.which("redis-server")

needs_redis = pytest.mark.skipif(
    REDIS_SERVER is None and not os.environ.get("CI"), reason="redis-server is not installed"
)


class RedisProcess:
    """One `redis-server`; it may be killed and started repeatedly. It listens on a UNIX socket only."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._socket = Path("/tmp", f"r{secrets.token_hex(4)}.sock")  # short: socket paths have a limit
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Address for redis-py."""
        return f"unix://{self._socket}?db=0"

    @property
    def pid(self) -> int:
        """Process id of the running server."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start it, empty, and wait until it responds."""
        assert REDIS_SERVER is not None, "CI must have redis-server"
        command = [REDIS_SERVER, "--port", "0", "--unixsocket", str(self._socket), "--dir", str(self._folder)]
        command += ["--save", "", "--appendonly", "no", "--daemonize", "no"]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        end = time.monotonic() + 60
        while True:
            with contextlib.suppress(redis.ConnectionError), self.client() as client:
                client.ping()
                return
            assert time.monotonic() < end, "redis-server does not answer"
            time.sleep(0.02)

    def client(self) -> redis.Redis:
        """A client for the test."""
        return redis.Redis.from_url(self.url)

    def kill(self) -> None:
        """Send SIGKILL, like a crash."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait(20)
            self._process = None

    def end(self) -> None:
        """End it and remove its files."""
        self.kill()
        self._socket.unlink(missing_ok=True)
