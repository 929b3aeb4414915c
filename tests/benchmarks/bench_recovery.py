"""Recovery: a decode replica is killed in the middle of streams; how long until each client's next token.

Four streams run; the replica that decodes most is killed with SIGKILL; for every stream that it had, the pause that
follows is one value. With a spare decode replica the streams go on there; without one they wait for the
replacement. Steps are stretched to 20 ms, so that a small model's streams last. Goals: median 3 s
with a spare, 10 s without.
"""

import asyncio
import os
import signal
import time
from dataclasses import dataclass, field

import httpx

from tests.benchmarks.conditions import Figure, checkpoint, conditions, make_parser, progress, report, show_conditions
from tests.benchmarks.served import Served, Setup
from tests.benchmarks.sse_client import chunks, completion
from tests.e2e.server import wait_for

STREAMS, TOKENS = 4, 600
SLOW_STEPS = "[chaos]\nenabled = true\nleast_step_s = 0.02\n"
SEEN_S = 1.0


@dataclass
class Client:
    """One stream and the arrival times of its tokens [s, `time.monotonic`]."""

    at: list[float] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)

    async def read(self, http: httpx.AsyncClient, prompt: list[int]) -> None:
        """Stream to the end."""
        async for chunk in chunks(http, completion("bench", prompt, TOKENS, return_token_ids=True)):
            self.at.append(time.monotonic())
            self.tokens += chunk["choices"][0].get("token_ids") or []

    def pause(self, killed: float) -> float:
        """The longest wait for a token that started before the kill, or within `SEEN_S` of it [s], counted from the
        kill.

        Tokens in flight still arrive for a moment, so the wait need not start at the kill itself.
        """
        waits = zip(self.at, self.at[1:], strict=False)
        return max((b - max(a, killed) for a, b in waits if b > killed and a < killed + SEEN_S), default=float("inf"))


async def one_kill(served: Served, number: int) -> list[float]:
    """Kill the busiest decode replica under four streams.

    Returns: the pause of each stream that it had [s].
    """
    clients = [Client() for _ in range(STREAMS)]
    prompt = [5 + (7 * number + i) % 90 for i in range(40)]
    async with httpx.AsyncClient(base_url=served.url, timeout=120.0) as http:
        reading = asyncio.gather(*(client.read(http, prompt) for client in clients))
        while min(len(client.at) for client in clients) < 20:  # noqa: ASYNC110 - tokens have no event
            await asyncio.sleep(0.02)
        before = await asyncio.to_thread(served.replicas, "decode")
        victim = max(before, key=lambda replica: replica["running"] or 0)
        killed = time.monotonic()
        os.kill(victim["pid"], signal.SIGKILL)
        await reading
    if any(len(client.tokens) != TOKENS or client.tokens != clients[0].tokens for client in clients):
        raise RuntimeError("the streams of one prompt differ")
    known = {replica["replica"] for replica in before}

    def replaced() -> bool:
        return bool({replica["replica"] for replica in served.replicas("decode")} - known)

    await asyncio.to_thread(wait_for, replaced, "a replacement", 120.0)
    pauses = sorted((client.pause(killed) for client in clients), reverse=True)
    return pauses[: max(1, STREAMS // served.setup.decodes)]


def measure(setup: Setup, kills: int, name: str, goal: float) -> Figure:
    """All kills of one case on one system."""
    pauses: list[float] = []
    with Served(setup) as served:
        for number in range(kills):
            pauses += asyncio.run(one_kill(served, number))
            progress(f"{name}, kill {number + 1}: {pauses[-1]:.2f} s")
    return Figure(f"{name}: killed to next token", "s", tuple(pauses), goal=goal)


def main() -> None:
    """Run and print."""
    args = make_parser("bench_recovery", __doc__, repeats=10).parse_args()
    with checkpoint(args.model) as model:
        found = conditions(model, dtype="float32", streams=STREAMS, kills=args.repeats, least_step_s=0.02)
        show_conditions(found)
        spare = Setup(model, decodes=2, npus=16, memory_servers=1, sections=SLOW_STEPS)
        alone = Setup(model, decodes=1, memory_servers=1, sections=SLOW_STEPS)
        figures = [measure(spare, args.repeats, "with a spare", 3.0)]
        figures.append(measure(alone, args.repeats, "without a spare", 10.0))
        report("bench_recovery", found, figures)


if __name__ == "__main__":
    main()
