"""Records the run: load, a response, `kill -9` of the decode instance that generates it, one more decode instance."""

import asyncio
import contextlib
import signal
import time
from collections.abc import Callable
from pathlib import Path

from docs.printed.animation.story import Timeline, npu_letters
from serving.client.http_client import ask_gateway
from serving.tools.chaos.asks import CHAT, Ask, StreamedAnswer, difference
from serving.tools.chaos.chaos_client import GatewayEndpoint, fetch
from serving.tools.chaos.own_system import OwnSystem
from serving.tools.chaos.targets import send, target_of
from serving.tools.demo.stage import DemoSystem, found_system
from serving.values.scaling_operations import ScalePool

CONFIG = Path(__file__).with_name("system.toml")
QUESTION = "Tell me a story about a clever rabbit and a garden."
FIELDS = {"max_tokens": 300, "temperature": 0.6, "seed": 5}
NPUS = 16
GROWN_NPUS = 8
"""NPUs of the decode pool with two instances."""
STREAMS = 7
ASK_S = 1.0
KILL_AT = 70
"""Tokens."""
SCALE_AT = 125
END_S = 3.0
"""After the answer's end, or the second instance's start."""
POLL_S = 0.05
BIN_S = 0.25
DEADLINE_S = 90.0


class Recorder:
    """One run against one system. Times count from its start."""

    def __init__(self, system: DemoSystem) -> None:
        self.system = system
        self.begun = time.monotonic()
        self.answers: list[StreamedAnswer] = []
        self.npus: list[tuple[float, str]] = []
        self.pieces: list[tuple[float, str]] = []
        self.events: list[tuple[float, str]] = []
        self._over = False
        self._grown = asyncio.Event()
        self._killed = self._scaled = False
        self._told = 0

    def now(self) -> float:
        """Seconds since the start."""
        return round(time.monotonic() - self.begun, 3)

    async def run(self) -> Timeline:
        """Run all steps in order.

        Raises: AssertionError if the response differs from that of an undisturbed run.
        """
        shown = {"messages": [{"role": "user", "content": QUESTION}], **FIELDS}
        reference = self._answer(shown)
        await fetch(GatewayEndpoint.of(self.system.url), reference, DEADLINE_S)
        self.answers.clear()
        self.begun = time.monotonic()
        beside = [asyncio.create_task(self._load(number)) for number in range(STREAMS)]
        beside.append(asyncio.create_task(self._look()))
        self.events.append((0.0, f"{STREAMS} streams run"))
        await asyncio.sleep(ASK_S)
        asked = self.now()
        answer = self._answer(shown)
        await fetch(GatewayEndpoint.of(self.system.url), answer, DEADLINE_S, self._take)
        assert difference(answer, reference) is None, difference(answer, reference)
        async with asyncio.timeout(DEADLINE_S):
            await self._grown.wait()
        await asyncio.sleep(END_S)
        end, self._over = self.now(), True
        for task in beside:
            task.cancel()
        await asyncio.gather(*beside, return_exceptions=True)
        return Timeline(
            question=QUESTION, asked_s=asked, pieces=self.pieces, npus=self.npus, rates=self._rates(end),
            events=self.events, streams=STREAMS,
        )  # fmt: skip

    def _answer(self, fields: dict[str, object]) -> StreamedAnswer:
        body = {"model": self.system.model, "stream": True, "return_token_ids": True, **fields}
        answer = StreamedAnswer(Ask(0, "shown", CHAT, body), time.monotonic())
        self.answers.append(answer)
        return answer

    async def _load(self, number: int) -> None:
        """One user that sends requests repeatedly."""
        for seed in range(1000):
            text = f"Tell me story number {number * 1000 + seed}."
            fields = {"messages": [{"role": "user", "content": text}], "max_tokens": 200, "seed": seed}
            await fetch(GatewayEndpoint.of(self.system.url), self._answer(fields), DEADLINE_S)

    async def _look(self) -> None:
        """Record the owner of each NPU whenever it changes."""
        while not self._over:
            with contextlib.suppress(Exception):  # the next poll follows soon
                status = await asyncio.to_thread(self.system.status)
                letters = npu_letters(status, NPUS)
                if not self.npus or self.npus[-1][1] != letters:
                    self.npus.append((self.now() if self.npus else 0.0, letters))
                if letters.count("d") == GROWN_NPUS:
                    self._grown.set()
            await asyncio.sleep(POLL_S)

    def _take(self, answer: StreamedAnswer) -> bool:
        """Receive a piece: store it, and run the due actions."""
        choice = answer.choices[0]
        if choice.text[self._told :]:
            self.pieces.append((self.now(), choice.text[self._told :]))
            self._told = len(choice.text)
        if not self._killed and len(choice.tokens) >= KILL_AT:
            self._killed = True
            self._later(self._kill)
        whole = self._killed and self.npus[-1][0] > self.events[-1][0] and "d" in self.npus[-1][1]
        if not self._scaled and whole and len(choice.tokens) >= SCALE_AT:
            self._scaled = True
            self._later(self._scale)
        return False

    @staticmethod
    def _later(do: Callable[[], None]) -> None:
        asyncio.get_running_loop().run_in_executor(None, do)

    def _kill(self) -> None:
        status = self.system.status()
        replica = next(pool for pool in status["pools"] if pool["name"] == "decode")["replicas"][0]
        target = target_of("decode", replica["replica"], replica["pid"], self.system.session)
        assert target is not None
        self.events.append((self.now(), f"$ kill -9 {target.pid}"))
        send(target, signal.SIGKILL)

    def _scale(self) -> None:
        self.events.append((self.now(), "$ cloudmatrix scale decode 2"))
        self.system.pools.scale(ScalePool("decode", 2, None, "cli"))

    def _rates(self, end: float) -> list[tuple[float, float]]:
        bins = [0] * (int(end / BIN_S) + 1)
        for answer in self.answers:
            for at, count in answer.choices[0].arrivals:
                place = int((at - self.begun) / BIN_S)
                if place < len(bins):
                    bins[place] += count
        return [(round((place + 1) * BIN_S, 2), count / BIN_S) for place, count in enumerate(bins[:-1])]


def record() -> Timeline:
    """Start a system, record, end it."""
    with OwnSystem(CONFIG) as own:
        ask_gateway(own.url, "/cluster", None)
        return asyncio.run(Recorder(found_system(own.url)).run())
