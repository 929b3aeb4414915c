"""Recovery: a decode replica is killed in the middle of streams; how long until each client's next token.

Four streams run; the replica that decodes most is killed with SIGKILL; for every stream that it had, the pause that
follows is one value. With a spare decode replica the streams go on there; without one they wait for the
replacement. Steps are stretched to 20 ms, so that a small model's streams last. Goals: median 3 s
with a spare, 10 s without. For the second case the logs tell where the time goes.
"""

import asyncio
import json
import os
import re
import signal
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx

from tests.benchmarks.conditions import (
    Figure,
    checkpoint,
    conditions,
    make_parser,
    progress,
    report,
    show_conditions,
)
from tests.benchmarks.served import HOST, Served, Setup

STREAMS = 4
TOKENS = 600
SLOW_STEPS = "[chaos]\nenabled = true\nleast_step_s = 0.02\n"
SEEN_S = 1.0
PATIENCE_S = 120.0
GOALS = {"with a spare": 3.0, "without a spare": 10.0}
_STAMP = re.compile(r"^\w+ (\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}) ")
PHASES = (
    ("killed to noticed by Serve", "controller_*.log", "Starting Replica(id='{}'"),
    ("to the replica's constructor", "replica_*_decode_{}.log", "Started initializing replica"),
    ("to model loaded and serving", "replica_*_decode_{}.log", "Finished initializing replica"),
    ("to linked to the gateway", "replica_*_gateway_*.log", "linked to decode#{}"),
)


@dataclass
class Client:
    """One stream and when its tokens came [s, `time.time`]."""

    at: list[float] = field(default_factory=list)
    text: list[int] = field(default_factory=list)

    def pause(self, killed: float) -> float:
        """The longest wait for a token that began before the kill, or within `SEEN_S` of it [s], counted from the kill.

        Tokens that were under way still arrive for a moment, so the wait need not begin at the kill itself.
        """
        waits = zip(self.at, self.at[1:], strict=False)
        return max((b - max(a, killed) for a, b in waits if b > killed and a < killed + SEEN_S), default=float("inf"))


async def read(client: Client, http: httpx.AsyncClient, prompt: list[int]) -> None:
    """Stream to the end. Raises: RuntimeError if the stream fails."""
    body = {"model": "bench", "prompt": prompt, "max_tokens": TOKENS, "temperature": 0, "ignore_eos": True}
    body |= {"stream": True, "return_token_ids": True}
    async with http.stream("POST", "/v1/completions", json=body) as response:
        async for line in response.aiter_lines():
            if not line.startswith("data: ") or line == "data: [DONE]":
                continue
            chunk: dict[str, Any] = json.loads(line.removeprefix("data: "))
            if "error" in chunk:
                raise RuntimeError(f"the stream failed: {chunk}")
            client.at.append(time.time())
            client.text += chunk["choices"][0].get("token_ids") or []


def replicas(served: Served) -> list[dict[str, Any]]:
    """Decode replicas that are listed now."""
    pools: list[dict[str, Any]] = json.loads(served.get("/cluster"))["pools"]
    return next(pool["replicas"] for pool in pools if pool["name"] == "decode")


async def one_kill(served: Served, number: int, decodes: int) -> tuple[list[float], float, str]:
    """Kill the busiest decode replica under four streams.

    Returns: the pause of each stream that it had [s], when it was killed, and its replacement's name.
    Raises: RuntimeError if a stream failed or the outputs differ.
    """
    clients = [Client() for _ in range(STREAMS)]
    prompt = [5 + (7 * number + i) % 90 for i in range(40)]
    async with httpx.AsyncClient(base_url=f"http://{HOST}:{served.port}", timeout=PATIENCE_S) as http:
        reading = asyncio.gather(*(read(client, http, prompt) for client in clients))
        while min(len(client.at) for client in clients) < 20:  # noqa: ASYNC110 - tokens have no event
            await asyncio.sleep(0.02)
        before = await asyncio.to_thread(replicas, served)
        victim = max(before, key=lambda replica: replica["running"] or 0)
        killed = time.time()
        os.kill(victim["pid"], signal.SIGKILL)
        await reading
    if any(len(client.text) != TOKENS or client.text != clients[0].text for client in clients):
        raise RuntimeError("the streams of one prompt differ")
    known = {replica["replica"] for replica in before}
    end = time.time() + PATIENCE_S
    while not (new := {r["replica"] for r in await asyncio.to_thread(replicas, served)} - known):
        if time.time() > end:
            raise RuntimeError("the replica was not replaced")
        await asyncio.sleep(0.1)
    pauses = [client.pause(killed) for client in clients]
    affected = sorted(pauses, reverse=True)[: max(1, STREAMS // decodes)]
    return affected, killed, str(new.pop()).partition("#")[2]


def phases(killed: float, replica: str) -> dict[str, float]:
    """Where the time of a replacement went, as far as the logs tell [s]."""
    folder = max(Path(tempfile.gettempdir()).glob("cloudmatrix-*"), key=lambda path: path.stat().st_mtime)
    logs, found, since = folder / "ray" / "session_latest" / "logs" / "serve", {}, killed
    for name, file, text in PHASES:
        at = next(_stamps(logs, file.format(replica), text.format(replica), since), None)
        if at is not None:
            found[name], since = at - since, at
    return found


def _stamps(logs: Path, pattern: str, text: str, since: float) -> Iterator[float]:
    for path in logs.glob(pattern):
        for line in path.read_text(errors="replace").splitlines():
            stamp = _STAMP.match(line)
            if stamp and text in line:
                at = datetime.strptime(stamp[1], "%Y-%m-%d %H:%M:%S,%f").timestamp()
                if at >= since - 0.001:
                    yield at


def measure(setup: Setup, kills: int, name: str) -> list[Figure]:
    """All kills of one case on one system."""
    pauses: list[float] = []
    spent: dict[str, list[float]] = {}
    with Served(setup) as served:
        for number in range(kills):
            found, killed, replica = asyncio.run(one_kill(served, number, setup.decodes))
            pauses += found
            for phase, seconds in phases(killed, replica).items():
                spent.setdefault(phase, []).append(seconds)
            progress(f"{name}, kill {number + 1}: {', '.join(f'{one:.2f}' for one in found)} s")
    figures = [Figure(f"{name}: killed to next token", "s", tuple(pauses), goal=GOALS[name])]
    return figures + [Figure(f"  {phase}", "s", tuple(values)) for phase, values in spent.items() if setup.decodes == 1]


def main() -> None:
    """Run and print."""
    parser = make_parser("bench_recovery", __doc__, repeats=10)
    args = parser.parse_args()
    with checkpoint(args.model) as model:
        found = conditions(model, dtype="float32", streams=STREAMS, kills=args.repeats, least_step_s=0.02)
        show_conditions(found)
        spare = Setup(model, decodes=2, npus=16, memory_servers=1, sections=SLOW_STEPS)
        alone = Setup(model, decodes=1, memory_servers=1, sections=SLOW_STEPS)
        figures = measure(spare, args.repeats, "with a spare")
        figures += measure(alone, args.repeats, "without a spare")
        report("bench_recovery", found, figures)


if __name__ == "__main__":
    main()
