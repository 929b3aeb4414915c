"""Resize: a group of ranks goes 2 -> 4 -> 2 under streams; does a stream wait longer for a token than beside that?

Needs a running server with one group of two ranks (`deploy/ep.toml`) and room for four. Streams run all the while, each
the same prompt again and again, so that every answer must equal the first. For each change of size: the longest gap
between two tokens from the order until all ranks compute together (for a shrink: until the others are alone), and the
longest in as much time just before the order. Goals: none fails or differs, no gap above its neighbour's by 50 ms.

Where clients share the processors with the ranks they are late themselves, for seconds while processes start, and see
gaps that are their own. So they run before all others where the system allows it (as root, or with CAP_SYS_NICE), and
the longest time that they were late is shown.
"""

import asyncio
import json
import os
import time
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

import httpx

from serving.cli.group_size import resize_groups, wait_for_size
from serving.http_client import ask_gateway
from tests.benchmarks.conditions import Figure, conditions, make_parser, progress, report, show_conditions

TOKENS = 200
GOAL_S = 0.05
SETTLE_S = 5.0
PATIENCE_S = 120.0
TIMER_S = 0.005


@dataclass
class Client:
    """One client: its gaps [(end, length) s, `time.monotonic`], and what went wrong."""

    prompt: list[int]
    gaps: list[tuple[float, float]] = field(default_factory=list)
    first: list[int] | None = None
    answers: int = 0
    failed: int = 0
    differ: int = 0

    def longest(self, begin: float, end: float) -> float:
        """The longest gap that ended then [s]."""
        return max((length for at, length in self.gaps if begin <= at <= end), default=0.0)


class Lateness:
    """How long clients did not run although there was something to do: a timer that is late like them."""

    def __init__(self) -> None:
        self._seen: list[tuple[float, float]] = []

    async def watch(self) -> None:
        """Take note of it. Never returns."""
        while True:
            due = time.monotonic() + TIMER_S
            await asyncio.sleep(TIMER_S)
            now = time.monotonic()
            self._seen.append((now, now - due))

    def longest(self, begin: float, end: float) -> float:
        """The longest that ended then [s]."""
        return max((length for at, length in self._seen if begin <= at <= end), default=0.0)


async def read(client: Client, http: httpx.AsyncClient, model: str, over: asyncio.Event) -> None:
    """Ask until it is over."""
    body = {"model": model, "prompt": client.prompt, "max_tokens": TOKENS, "temperature": 0, "ignore_eos": True}
    body |= {"stream": True, "return_token_ids": True}
    while not over.is_set():
        tokens: list[int] = []
        last = None
        async with http.stream("POST", "/v1/completions", json=body) as response:
            async for line in response.aiter_lines():
                if not line.startswith("data: ") or line == "data: [DONE]":
                    continue
                now, chunk = time.monotonic(), json.loads(line.removeprefix("data: "))
                tokens += (chunk.get("choices") or [{}])[0].get("token_ids") or []
                if last is not None:
                    client.gaps.append((now, now - last))
                last = now
        client.answers += 1
        client.failed += len(tokens) != TOKENS
        client.first = client.first or tokens
        client.differ += tokens != client.first


async def measure(url: str, key: str | None, pool: str, sizes: list[int], clients: list[Client]) -> list[Figure]:
    """Change sizes under load."""
    model = (await asyncio.to_thread(ask_gateway, url, "/v1/models", key))["data"][0]["id"]
    over, late, figures = asyncio.Event(), Lateness(), []
    timer = asyncio.create_task(late.watch())
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    limits = httpx.Limits(max_connections=len(clients))
    async with httpx.AsyncClient(base_url=url, headers=headers, timeout=PATIENCE_S, limits=limits) as http:
        running = [asyncio.create_task(read(client, http, model, over)) for client in clients]
        await asyncio.sleep(4 * SETTLE_S)
        for size in sizes:
            begun = time.monotonic()
            answer = await asyncio.to_thread(resize_groups, url, key, pool, size)
            await asyncio.to_thread(partial(wait_for_size, url, key, answer))
            took_s = time.monotonic() - begun
            await asyncio.sleep(SETTLE_S)
            during = [client.longest(begun, begun + took_s + 1.0) for client in clients]
            beside = [client.longest(begun - took_s - 1.0, begun) for client in clients]
            progress(f"{size} ranks after {took_s:.1f} s: longest gap {max(during):.3f} s, beside {max(beside):.3f} s")
            figures += [
                Figure(f"to {size} ranks: time", "s", (took_s,)),
                Figure(f"to {size} ranks: longest gap", "s", tuple(during)),
                Figure("  in as much time before", "s", tuple(beside)),
                Figure("  beyond that", "s", (max(during) - max(beside),), goal=GOAL_S),
                Figure("  clients late themselves", "s", (late.longest(begun, begun + took_s + 1.0),)),
            ]
        over.set()
        await asyncio.gather(*running)
        timer.cancel()
    return figures


def main() -> None:
    """Run and print."""
    parser = make_parser("bench_resize", __doc__, repeats=1)
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="of the gateway (default: %(default)s)")
    parser.add_argument("--api-key", help="one of [gateway] admin_keys, where there are keys")
    parser.add_argument("--pool", default="decode", help="whose group (default: %(default)s)")
    parser.add_argument("--streams", type=int, default=8, help="at once (default: %(default)s)")
    args = parser.parse_args()
    found = conditions(args.model, streams=args.streams, tokens=TOKENS)
    show_conditions(found)
    with suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    clients = [Client([5 + (7 * number + i) % 90 for i in range(40)]) for number in range(args.streams)]
    figures = asyncio.run(measure(args.url, args.api_key, args.pool, [4, 2] * args.repeats, clients))
    answers = sum(client.answers for client in clients)
    failed, differ = (sum(getattr(client, name) for client in clients) for name in ("failed", "differ"))
    figures.append(Figure(f"of {answers} requests: failed", "", (failed,), goal=0.0))
    figures.append(Figure("  other tokens than at first", "", (differ,), goal=0.0))
    report("bench_resize", found, figures)


if __name__ == "__main__":
    main()
