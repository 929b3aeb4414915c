"""`cloudmatrix experts resize` and `drain`: groups of ranks grow, shrink and replace a rank while they serve."""

import time
from collections.abc import Callable
from typing import Any

from serving.errors import ScaleError
from serving.http_client import RefusedError, ask_again, ask_gateway

DEADLINE_S = 20.0
"""Longer than a gateway's wait for a group's shell."""
WAIT_S = 300.0
LOOK_S = 0.5


def resize_groups(url: str, api_key: str | None, pool: str, ranks: int) -> dict[str, Any]:
    """Set the number of ranks of each group of a pool.

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
    """Wait until groups have the requested size.

    Args:
        answer: of `resize_groups`.
    Returns: duration of the wait [s].
    Raises: ScaleError if it takes too long; UnavailableError.
    """
    wanted = {one["group"]: one["ranks"] for one in answer["groups"]}

    def done() -> bool:
        members = {one["group"]: len(one["members"]) for one in _groups(url, api_key)}
        return all(members.get(group) == ranks for group, ranks in wanted.items())

    return _wait(done, "the groups have not got their size", wait_s)


def process_of(url: str, api_key: str | None, rank: str) -> int | None:
    """Process id of a rank; None if there is no rank of that name. Raises: UnavailableError, in one line."""
    return next(
        (one["pid"] for group in _groups(url, api_key) for one in group["ranks"] if one["replica"] == rank), None
    )


def wait_for_replacement(
    url: str, api_key: str | None, rank: str, drained: int | None, wait_s: float = WAIT_S
) -> float:
    """Wait until another process has replaced a draining rank in its group.

    Args:
        drained: process id of the drained rank, see `process_of`.
    Returns: duration of the wait [s].
    Raises: ScaleError if it takes too long; UnavailableError.
    """

    def done() -> bool:
        return any(
            one["replica"] == rank and one["pid"] != drained and one["rank"] in group["members"]
            for group in _groups(url, api_key)
            for one in group["ranks"]
        )

    return _wait(done, f"no other process has taken the place of {rank}", wait_s)


def _groups(url: str, api_key: str | None) -> list[dict[str, Any]]:
    groups: list[dict[str, Any]] = ask_again(lambda: ask_gateway(url, "/experts", api_key))["groups"]
    return groups


def _wait(done: Callable[[], bool], problem: str, wait_s: float) -> float:
    begun = time.monotonic()
    while not done():
        if time.monotonic() - begun > wait_s:
            raise ScaleError(f"{problem} after {wait_s:.0f} s; see the logs", kind="unavailable")
        time.sleep(LOOK_S)
    return time.monotonic() - begun
