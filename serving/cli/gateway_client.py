"""What the command line needs of a running gateway: one JSON question, one JSON answer, mistakes in one line."""

import json
import urllib.error
import urllib.request
from typing import Any

from hardware.nesting import parse_json
from serving.cli.http_question import fetch, is_timeout
from serving.errors import SilentError, UnavailableError

DEADLINE_S = 5.0


def ask_gateway(
    url: str,
    path: str,
    api_key: str | None,
    *,
    method: str = "GET",
    body: dict[str, Any] | None = None,
    deadline_s: float = DEADLINE_S,
) -> dict[str, Any]:
    """Ask a gateway.

    Args:
        path: from the address's root, already quoted.
    Raises: UnavailableError, in one line, when it cannot be reached, refuses, or is not a gateway; SilentError when it
        gives no answer in time.
    """
    data = None if body is None else json.dumps(body).encode()
    try:
        request = urllib.request.Request(f"{url.rstrip('/')}{path}", data=data, method=method)
        if data is not None:
            request.add_header("Content-Type", "application/json")
        if api_key:
            request.add_header("Authorization", f"Bearer {api_key}")
        answer: dict[str, Any] = parse_json(fetch(request, deadline_s))
    except urllib.error.HTTPError as error:
        raise UnavailableError(f"{url} answered {error.code}: {_reason(error)}") from error
    except (OSError, ValueError) as error:
        if is_timeout(error):
            raise SilentError(f"the gateway at {url} does not answer within {deadline_s:g} s") from error
        raise UnavailableError(
            f"no gateway at {url} ({error}); start one with `cloudmatrix serve`, or give --url"
        ) from error
    return answer


def _reason(error: urllib.error.HTTPError) -> str:
    """What to do about it: the gateway's own words, if it is one."""
    with error:
        if error.code == 401:
            return "give its key with --api-key"
        try:
            return str(parse_json(error.read())["error"]["message"])
        except (OSError, ValueError, KeyError, TypeError):
            return "is that a CloudMatrix gateway?"
