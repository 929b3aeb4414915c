"""What the command line needs of a running system's pools: Ray's dashboard, its token, one question after another."""

import json
import time
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass
from typing import Any

from msgspec.structs import asdict

from hardware.nesting import parse_json
from serving.cli.ask_again import ask_again
from serving.cli.http_question import fetch, is_timeout
from serving.deployments.session import running_starts
from serving.errors import ScaleError, SilentError, UnavailableError
from serving.values.scaling import ReadDecisions, ScalePool

DEADLINE_S = 12.0
"""The dashboard connects to Ray when it is first asked, which takes a moment."""
POLL_S = 0.1


@dataclass(frozen=True, slots=True)
class PoolsClient:
    """One running system."""

    url: str
    token: str

    def state(self) -> dict[str, Any]:
        """Answer of `ReadPools`.

        Raises: UnavailableError, ScaleError in one line.
        """
        return self._ask("GET", "/api/pools")

    def scale(self, wish: ScalePool) -> dict[str, Any]:
        """Answer of `ScalePool`, as it came.

        Raises: UnavailableError, ScaleError in one line.
        """
        body = asdict(wish)
        return self._ask("POST", f"/api/pools/{urllib.parse.quote(body.pop('pool'), safe='')}/scale", body)

    def decisions(self, question: ReadDecisions) -> list[dict[str, Any]]:
        """Answer of `ReadDecisions`.

        Raises: UnavailableError, ScaleError in one line.
        """
        query = urllib.parse.urlencode({name: value for name, value in asdict(question).items() if value is not None})
        answer: list[dict[str, Any]] = self._ask("GET", f"/api/pools/decisions?{query}")["decisions"]
        return answer

    def wait(self, pool: str, deadline_s: float) -> bool:
        """Wait until as many replicas of a pool serve as were asked for. Returns: whether they do.

        Raises: UnavailableError, ScaleError in one line.
        """
        end = time.monotonic() + deadline_s
        while time.monotonic() < end:
            row = next(one for one in self.state()["pools"] if one["pool"] == pool)
            if row["running"] == row["target"]:
                return True
            time.sleep(POLL_S)
        return False

    def _ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """Ask, again while the board is silent: it restarts, or the machine is loaded. Any question may be repeated."""
        return ask_again(lambda: self._ask_once(method, path, body))

    def _ask_once(self, method: str, path: str, body: dict[str, Any] | None) -> dict[str, Any]:
        data = None if body is None else json.dumps(body).encode()
        try:
            request = urllib.request.Request(f"{self.url.rstrip('/')}{path}", data=data, method=method)
            request.add_header("Authorization", f"Bearer {self.token}")
            if data is not None:
                request.add_header("Content-Type", "application/json")
            answer: dict[str, Any] = parse_json(fetch(request, DEADLINE_S))
        except urllib.error.HTTPError as error:
            raise _refusal(self.url, error) from error
        except (OSError, ValueError) as error:
            if is_timeout(error):
                raise SilentError(f"the dashboard at {self.url} does not answer within {DEADLINE_S:g} s") from error
            raise UnavailableError(f"no dashboard at {self.url} ({error})") from error
        return answer


def find_system(url: str | None, token: str | None) -> PoolsClient:
    """The system that a command means.

    Args:
        url, token: as given on the command line; without an address the one start of this user on this machine.
    Raises: UnavailableError, in one line, when there is none, or more than one.
    Effects: none.
    """
    starts = running_starts()
    if url is None:
        if not starts:
            raise UnavailableError("no system of yours runs here: start one, or give --dashboard and --token")
        if len(starts) > 1:
            urls = ", ".join(start.dashboard_url for start in starts)
            raise UnavailableError(f"several systems of yours run on this machine: choose one by --dashboard: {urls}")
        return PoolsClient(starts[0].dashboard_url, token or starts[0].token)
    known = next((start.token for start in starts if start.dashboard_url == url.rstrip("/")), None)
    if token is None and known is None:
        raise UnavailableError(f"{url} is none of your systems on this machine: give its --token or --token-file")
    return PoolsClient(url, token or known or "")


def _refusal(url: str, error: urllib.error.HTTPError) -> UnavailableError | ScaleError:
    with error:
        try:
            told = parse_json(error.read())["error"]
            message, kind = str(told["message"]), str(told["kind"])
            return (
                SilentError(message) if kind == "unavailable" else ScaleError(message, kind=kind, fits=told.get("fits"))
            )
        except (OSError, ValueError, KeyError, TypeError):
            if error.code in (401, 403):
                return UnavailableError(f"{url} does not accept the token; `cloudmatrix serve` prints it at its start")
            return UnavailableError(f"{url} answered {error.code}: is that a CloudMatrix dashboard?")
