"""One fake dashboard for the whole folder; each test finds it in its initial state."""

import json
import os
import re
import secrets
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.scaling.dashboard.chromium import Chromium

REPOSITORY = Path(__file__).resolve().parents[3]
TOKEN = "0123456789abcdef" * 4


class FakeDashboard:
    """The process, and requests to it."""

    def __init__(self, folder: Path, *, token: bool = True) -> None:
        self.folder = folder
        (folder / "token").write_text(TOKEN)
        mode = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(folder / "token")}
        environment = {**os.environ, **(mode if token else {"RAY_AUTH_MODE": "disabled"})}
        with (folder / "err").open("wb") as err:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.scaling.dashboard.fake_dashboard", str(folder)],
                cwd=REPOSITORY, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=err,
            )  # fmt: skip
        assert self._process.stdout is not None
        port = self._process.stdout.readline().strip().decode()
        assert re.fullmatch(r"\d+", port), (folder / "err").read_text()[-2000:]
        self.url = f"http://127.0.0.1:{port}"

    def end(self) -> None:
        """End it as Ray's dashboard ends, together with its module."""
        self._process.communicate(timeout=60)

    def wish(self, **wishes: Any) -> None:
        """Set the behaviour of the fake system from now on."""
        new = self.folder / "wishes.new"
        new.write_text(json.dumps(wishes))
        new.rename(self.folder / "wishes.json")

    def ask(
        self, method: str, path: str, body: object = None, *, token: str | None = TOKEN, **headers: str
    ) -> tuple[int, dict[str, str], Any]:
        """Send a request like a script. Header names with underscores. Returns: status, headers, JSON or text."""
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if token is not None:
            sent["Authorization"] = f"Bearer {token}"
        data = body if isinstance(body, bytes) else None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.url}{path}", data, sent, method=method)
        try:
            with urllib.request.urlopen(request, timeout=60) as response:
                status, told, text = response.status, dict(response.headers), response.read()
        except urllib.error.HTTPError as error:
            with error:
                status, told, text = error.code, dict(error.headers), error.read()
        return status, told, json.loads(text) if "json" in told.get("Content-Type", "") else text.decode()

    def pool(self, name: str) -> dict[str, Any]:
        """Current state of one pool."""
        _, _, state = self.ask("GET", "/api/pools")
        found: dict[str, Any] = next(pool for pool in state["pools"] if pool["pool"] == name)
        return found


@pytest.fixture(scope="session")
def short_folder() -> Iterator[Path]:
    """A folder with a path short enough for a socket's name."""
    folder = Path("/tmp", f"d{secrets.token_hex(3)}")
    folder.mkdir(mode=0o700)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="session")
def running_dashboard(short_folder: Path) -> Iterator[FakeDashboard]:
    """A dashboard, started once."""
    folder = short_folder / "a"
    folder.mkdir()
    dashboard = FakeDashboard(folder)
    yield dashboard
    dashboard.end()


@pytest.fixture
def dashboard(running_dashboard: FakeDashboard) -> FakeDashboard:
    """With two prefill and three decode instances, one memory server, no load, no holds."""
    running_dashboard.wish(as_new=True)
    assert running_dashboard.ask("DELETE", "/api/pools/nobody/hold")[0] == 404  # polls, and makes older results stale
    running_dashboard.wish()
    return running_dashboard


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    """A browser, started once."""
    with Chromium(tmp_path_factory.mktemp("chromium") / "profile") as started:
        yield started
