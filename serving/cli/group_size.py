"""`cloudmatrix experts resize` and `drain`: groups of ranks grow, shrink and replace a rank while they serve."""

import time
from typing import Any

from serving.errors import ScaleError
from serving.http_client import RefusedError, ask_again, ask_gateway

DEADLINE_S = 20.0
"""Longer than a gateway waits for a group's shell."""
WAIT_S = 300.0
LOOK_S = 0.5


def resize_groups(url: str, api_key: str | None, pool: str, ranks: int) -> dict[str, Any]:
    """Give each group of a pool so many ranks.

    Raises: UnavailableError, in one line; ScaleError if they do not fit.
    """
    try:
        body = {"pool": pool, "ranks": ranks}
        return ask_gateway(url, "/experts/resize", api_key, body=body, deadline_s=DEADLINE_S)
    except RefusedError as error:
        if error.error.get("code") == "no_room":
            raise ScaleError(str(error.error["message"]), kind="no_room") from error
        raise


def drain_rank(url: str, api_key: str | None, rank: str) -> dict[str, Any]:
    """Replace a rank without a loss.

    Raises: UnavailableError, in one line.
    """
    return ask_gateway(url, "/experts/drain", api_key, body={"rank": rank}, deadline_s=DEADLINE_S)


def wait_for_size(url: str, api_key: str | None, answer: dict[str, Any], wait_s: float = WAIT_S) -> float:
    """Wait until groups have the size that was asked for.

    Args:
        answer: of `resize_groups`.
    Returns: how long it took [s].
    Raises: ScaleError if it takes too long; UnavailableError.
    """
    wanted = {one["group"]: list(range(one["ranks"])) for one in answer["groups"]}
    begun = time.monotonic()
    while True:
        seen = ask_again(lambda: ask_gateway(url, "/experts", api_key))
        members = {one["group"]: one["members"] for one in seen["groups"]}
        if all(members.get(group) == ranks for group, ranks in wanted.items()):
            return time.monotonic() - begun
        if time.monotonic() - begun > wait_s:
            raise ScaleError(
                f"the groups have not got their size after {wait_s:.0f} s; see the logs", kind="unavailable"
            )
        time.sleep(LOOK_S)
