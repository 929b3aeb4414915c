"""Client of a running system's pools, at Ray's dashboard, for commands."""

import time
import urllib.parse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msgspec.structs import asdict

from hardware.regular_file import read_regular_text
from serving.client.http_client import RefusedError, ask_again, ask_dashboard
from serving.cluster.host_environment import DASHBOARD, TOKEN, TOKEN_FILE, value_here
from serving.cluster.session import RunningStart, running_starts
from serving.errors import ScaleError, SilentError, UnavailableError
from serving.values.scaling_operations import ReadDecisions, ReadEvents, ScalePool

POLL_S = 0.1
RAY_DASHBOARD_HERE = "http://127.0.0.1:8265"
"""Default address of Ray's dashboard."""


@dataclass(frozen=True, slots=True)
class PoolsClient:
    """One running system."""

    url: str
    token: str

    def state(self) -> dict[str, Any]:
        """Response to `ReadPools`.

        Raises: UnavailableError, ScaleError in one line.
        """
        return self._ask("/api/pools")

    def scale(self, command: ScalePool) -> dict[str, Any]:
        """Response to `ScalePool`, unchanged.

        Raises: UnavailableError, ScaleError in one line.
        """
        body = asdict(command)
        return self._ask(f"/api/pools/{urllib.parse.quote(body.pop('pool'), safe='')}/scale", body)

    def decisions(self, question: ReadDecisions) -> list[dict[str, Any]]:
        """Response to `ReadDecisions`.

        Raises: UnavailableError, ScaleError in one line.
        """
        return self._list("decisions", question)

    def events(self, question: ReadEvents) -> list[dict[str, Any]]:
        """Response to `ReadEvents`.

        Raises: UnavailableError, ScaleError in one line.
        """
        return self._list("events", question)

    def wait(self, pool: str, deadline_s: float, replicas: int | None = None) -> bool:
        """Wait until as many replicas of a pool serve as requested. Returns: whether they do.

        Args:
            replicas: expected target; if the target differs from it, do not wait any longer.

        Raises: UnavailableError, ScaleError in one line.
        """
        end = time.monotonic() + deadline_s
        while time.monotonic() < end:
            row = next(one for one in self.state()["pools"] if one["pool"] == pool)
            if replicas is not None and row["target"] != replicas:
                return False
            if row["running"] == row["target"]:
                return True
            time.sleep(POLL_S)
        return False

    def _list(self, kind: str, question: ReadDecisions | ReadEvents) -> list[dict[str, Any]]:
        query = urllib.parse.urlencode({name: value for name, value in asdict(question).items() if value is not None})
        answer: list[dict[str, Any]] = self._ask(f"/api/pools/{kind}?{query}")[kind]
        return answer

    def _ask(self, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """Send a request, again while the board does not respond (restart, load): all requests are repeatable."""
        return ask_again(lambda: self._ask_once(path, body))

    def _ask_once(self, path: str, body: dict[str, Any] | None) -> dict[str, Any]:
        try:
            return ask_dashboard(self.url, path, self.token, body=body)
        except RefusedError as refused:
            message, kind = str(refused.error.get("message")), refused.error.get("kind")
            if kind is None:
                raise
            if kind == "unavailable":
                raise SilentError(message) from None
            raise ScaleError(message, kind=str(kind), fits=refused.error.get("fits")) from None


def only_start(starts: Sequence[RunningStart]) -> RunningStart | None:
    """The start to use for a command without an address, of either kind; None = there is none.

    Raises: UnavailableError, in one line, if there are several.
    """
    if len(starts) > 1:
        both = ", ".join(f"{start.gateway_url} (dashboard {start.dashboard_url})" for start in starts)
        raise UnavailableError(
            f"several systems of yours run on this machine: choose one by --url or --dashboard: {both}"
        )
    return starts[0] if starts else None


def find_system(url: str | None, token: str | None) -> PoolsClient:
    """The system for a command.

    Args:
        url, token: as given on the command line; without an address the only start of this user on this machine, or
            else the dashboard of a Ray started by hand, found like Ray's own `serve deploy` finds it.
    Raises: UnavailableError, in one line, if there is none, or more than one.
    """
    starts = running_starts()
    if url is None and (start := only_start(starts)) is not None:
        return PoolsClient(start.dashboard_url, token or start.token)
    known = next((start.token for start in starts if url is not None and start.dashboard_url == url.rstrip("/")), None)
    token = token or known or _ray_token()
    if token is None:
        raise UnavailableError(
            "no system of yours runs here: start one, or give --dashboard and --token"
            if url is None
            else f"{url} is none of your systems on this machine: give its --token or --token-file"
        )
    return PoolsClient(url or value_here(DASHBOARD) or RAY_DASHBOARD_HERE, token)


def _ray_token() -> str | None:
    """The token of this user's Ray, where Ray's own commands look for it; None without one."""
    if token := value_here(TOKEN).strip():
        return token
    try:
        return read_regular_text(Path(value_here(TOKEN_FILE) or Path.home() / ".ray" / "auth_token")).strip() or None
    except (OSError, RuntimeError, UnicodeDecodeError):  # no such file; no home
        return None
