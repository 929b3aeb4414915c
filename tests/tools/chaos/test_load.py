"""A flood of another tenant: the number of its streams, its endpoint, and its duration."""

import asyncio
from typing import Any

from serving.tools.chaos.asks import COMPLETIONS, Ask
from serving.tools.chaos.chaos_client import GatewayEndpoint
from serving.tools.chaos.steady_load import ChaosLoad
from tests.tools.chaos.http_server import STREAM, Handler, chunk, play, serving
from tests.tools.chaos.made import run_of

COUNT = 5
ASKS = tuple(
    Ask(number, "greedy", COMPLETIONS, {"stream": True, "max_tokens": longest, "prompt": "a"})
    for number, longest in enumerate((2, 9))
)


async def flooded(handler: Handler, lasts_s: float, until: int) -> tuple[list[str], list[dict[str, Any]]]:
    """Flood a server until this many of its requests have ended.

    Returns: outcomes of the flood's requests; the orders that its server received.
    """
    orders: list[dict[str, Any]] = []

    async def count(order: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        orders.append(order)
        await handler(order, writer)

    run = run_of(events=())
    async with serving() as url, serving(count) as flooded_url:
        load = ChaosLoad(run, GatewayEndpoint.of(url), ASKS, 30.0, GatewayEndpoint.of(flooded_url))
        await load.learn()
        load.flood(1, COUNT, lasts_s)
        while len([answer for answer in run.answers if answer.outcome != "open"]) < until:  # noqa: ASYNC110  # answers are plain values
            await asyncio.sleep(0.01)
        await load.finish()
    assert all(answer.burst == 1 for answer in run.answers)
    return [answer.outcome for answer in run.answers], orders


async def never_end(order: dict[str, Any], writer: asyncio.StreamWriter) -> None:
    """A response that starts, then sends comments until its client disconnects."""
    writer.write(STREAM)
    while True:
        writer.write(chunk(b": wait\n\n"))
        await writer.drain()
        await asyncio.sleep(0.01)


async def refuse(order: dict[str, Any], writer: asyncio.StreamWriter) -> None:
    """Refuse with 429."""
    writer.write(b"HTTP/1.1 429 Too Many Requests\r\nContent-Length: 2\r\n\r\n{}")


def test_so_many_streams_run_at_once_and_are_left_when_its_time_is_over() -> None:
    outcomes, orders = asyncio.run(flooded(never_end, 0.3, COUNT))
    assert outcomes == ["cancelled"] * COUNT
    assert {order["max_tokens"] for order in orders} == {9}  # only the longest asks


def test_a_stream_that_ends_is_followed_by_another() -> None:
    outcomes, orders = asyncio.run(flooded(play, 60.0, COUNT + 2))
    assert outcomes.count("finished") >= COUNT + 2
    assert len(orders) <= len(outcomes)


def test_refused_streams_are_not_sent_again_at_once() -> None:
    """Without the pause there are hundreds within this time."""
    outcomes, _ = asyncio.run(flooded(refuse, 0.3, COUNT))
    assert set(outcomes) <= {"failed", "cancelled"}
    assert len(outcomes) <= 2 * COUNT
