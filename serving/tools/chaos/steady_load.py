"""Steady load: the asks in rotation, at a constant rate, independent of earlier ones; every response is compared when
it ends.
"""

import asyncio
import itertools
import random
import time
from collections.abc import Callable

from serving.deadline import within
from serving.errors import UnavailableError
from serving.tools.chaos.asks import Ask, Outcome, StreamedAnswer, difference, logprob_distance
from serving.tools.chaos.chaos_client import GatewayEndpoint, fetch
from serving.tools.chaos.chaos_result import ChaosRun

AT_ONCE = 8
"""Requests of the reference that run side by side."""
FAILED_PAUSE_S = 1.0
"""A flood waits so long after a stream that failed: one that is refused would be sent again at once, and again."""


class ChaosLoad:
    """Sends requests and records the responses.

    Args:
        run: its `answers`, `differences` and `logprob_distance` are filled.
        flooder: the same gateway, with the key of the tenant that sends floods.
    """

    def __init__(
        self,
        run: ChaosRun,
        endpoint: GatewayEndpoint,
        asks: tuple[Ask, ...],
        deadline_s: float,
        flooder: GatewayEndpoint | None = None,
    ) -> None:
        self._run = run
        self._endpoint = endpoint
        self._flooder = flooder or endpoint
        self._floods: set[asyncio.Task[None]] = set()
        self._asks = asks
        self._deadline_s = deadline_s
        self._references: list[StreamedAnswer] = []
        self._under_way: set[asyncio.Task[Outcome]] = set()
        self.in_flight = 0
        self.tokens_of_ended = 0

    async def learn(self) -> None:
        """Send all requests twice, without faults.

        Raises: UnavailableError if a request fails, or the two responses differ.
        """
        gate = asyncio.Semaphore(AT_ONCE)

        async def one(ask: Ask) -> StreamedAnswer:
            async with gate:
                answer = StreamedAnswer(ask, time.monotonic())
                await fetch(self._endpoint, answer, self._deadline_s)
            if answer.outcome != "finished":
                raise UnavailableError(f"undisturbed, request {ask.number} ({ask.form}) failed: {answer.reason}")
            return answer

        first = await asyncio.gather(*(one(ask) for ask in self._asks))
        for again, before in zip(await asyncio.gather(*(one(ask) for ask in self._asks)), first, strict=True):
            other = difference(again, before)
            if other is not None:
                raise UnavailableError(
                    f"undisturbed, request {before.ask.number} ({before.ask.form}) returned two different responses: "
                    f"{other}; without one correct response no comparison is possible"
                )
        self._references = first
        self._run.references = len(first)

    @property
    def tokens(self) -> int:
        """Tokens received so far, of all requests."""
        return self.tokens_of_ended + sum(len(c.tokens) for a in self._open() for c in a.choices)

    async def send_steadily(self, rate_per_s: float, stop: asyncio.Event) -> None:
        """Send until stopped; does not wait for requests in flight at that time."""
        begun, sent = time.monotonic(), 0
        while not stop.is_set():
            self.start(self._asks[sent % len(self._asks)])
            sent += 1
            pause = begun + sent / rate_per_s - time.monotonic()
            if pause > 0:
                try:
                    await within(stop.wait(), pause)
                except TimeoutError:
                    continue

    def burst(self, number: int, count: int, draw: float) -> None:
        """Send many at once whose clients disconnect at some point. Effects: they are in flight."""
        rng = random.Random(f"burst-{number}-{draw}")
        for ask in rng.sample([ask for ask in self._asks if ask.streamed] * count, count):
            self.start(ask, burst=number, leave_after=rng.randrange(1, max(2, int(ask.body["max_tokens"]))))

    def flood(self, number: int, count: int, lasts_s: float) -> None:
        """Keep `count` long streams of the second tenant running for `lasts_s`. Effects: they are in flight."""
        task = asyncio.create_task(self._flood(number, count, lasts_s))
        self._floods.add(task)
        task.add_done_callback(self._floods.discard)

    async def _flood(self, number: int, count: int, lasts_s: float) -> None:
        streams = [ask for ask in self._asks if ask.streamed and ask.choices == 1]
        longest = max(int(ask.body["max_tokens"]) for ask in streams)
        asks = itertools.cycle([ask for ask in streams if int(ask.body["max_tokens"]) == longest])
        running: set[asyncio.Task[Outcome]] = set()
        try:
            async with asyncio.timeout(lasts_s):
                while True:
                    running |= {self.start(next(asks), burst=number, flood=True) for _ in range(count - len(running))}
                    done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                    if any(task.result() == "failed" for task in done):
                        await asyncio.sleep(FAILED_PAUSE_S)
        except TimeoutError:
            pass  # its time is over
        finally:
            for task in running:
                task.cancel()

    def start(
        self, ask: Ask, burst: int | None = None, leave_after: int | None = None, *, flood: bool = False
    ) -> asyncio.Task[Outcome]:
        """Send one request, of the load's or the flood's tenant.

        Returns: its task, whose result is the outcome; cancelling it disconnects.
        Effects: it is in flight; its response is in the run from now on.
        """
        answer = StreamedAnswer(ask, time.monotonic(), burst)
        index = len(self._run.answers)
        self._run.answers.append(answer)
        task = asyncio.create_task(self._one(index, answer, leave_after, self._flooder if flood else self._endpoint))
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)
        return task

    async def finish(self) -> None:
        """Wait for requests in flight; each has its deadline. Effects: floods end."""
        for flood in self._floods:
            flood.cancel()
        while self._under_way or self._floods:
            await asyncio.wait([*self._under_way, *self._floods])

    async def leave(self) -> None:
        """End requests in flight, like a client that disconnects. Effects: they count as cancelled by us."""
        for task in self._under_way:
            task.cancel()
        await self.finish()

    async def _one(
        self, index: int, answer: StreamedAnswer, leave_after: int | None, endpoint: GatewayEndpoint
    ) -> Outcome:
        self.in_flight += 1
        try:
            await fetch(endpoint, answer, self._deadline_s, None if leave_after is None else _after(leave_after))
        except asyncio.CancelledError:
            answer.outcome, answer.ended_s = "cancelled", time.monotonic()
        finally:
            self.in_flight -= 1
            self.tokens_of_ended += sum(len(choice.tokens) for choice in answer.choices)
        self._compare(index, answer)
        answer.compact()
        return answer.outcome

    def _compare(self, index: int, answer: StreamedAnswer) -> None:
        if answer.outcome == "failed" and not any(choice.tokens for choice in answer.choices):
            return
        reference = self._references[answer.ask.number]
        other: str | None
        try:
            other = difference(answer, reference)
        except Exception as error:  # a response that cannot be compared is different
            other = f"cannot be compared ({type(error).__name__}: {error})"
        if other is not None and answer.outcome != "failed":
            self._run.differences[index] = other
        self._run.logprob_distance = max(self._run.logprob_distance, logprob_distance(answer, reference))

    def _open(self) -> list[StreamedAnswer]:
        """Requests in flight; they are among the last that were sent."""
        found: list[StreamedAnswer] = []
        for answer in reversed(self._run.answers):
            if len(found) >= self.in_flight:
                break
            if answer.outcome == "open":
                found.append(answer)
        return found


def _after(tokens: int) -> Callable[[StreamedAnswer], bool]:
    return lambda answer: sum(len(choice.tokens) for choice in answer.choices) >= tokens
