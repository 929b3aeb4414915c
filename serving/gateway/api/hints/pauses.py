"""Tool pauses at a live gateway: reports requests and answers to the core, and sends its actions at their times."""

import asyncio
from collections.abc import Callable, Collection, Sequence
from math import isfinite
from typing import Protocol

from serving.gateway.core.kv_hints import ClientHints, OrderHints, SessionName
from serving.gateway.core.pause_times import PauseTimes, pause_claim
from serving.telemetry.metrics import GatewayMetrics
from serving.values.kv_hints import HintAction, HintOutcome, SequenceClaim


class HintSender(Protocol):
    """The part of `KvHints` that is needed here."""

    async def send(self, namespace: str, actions: Sequence[HintAction]) -> Sequence[HintOutcome]:
        """See `KvHints.send`."""
        ...


class PauseDesk:
    """Tool pauses of one gateway. Used from its event loop, with at most one timer and one task of its own.

    Args:
        clock: of the pauses; None = the event loop's, which is never set.
    """

    def __init__(
        self,
        servers: HintSender,
        times: PauseTimes,
        metrics: GatewayMetrics,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self.times = times
        self._servers = servers
        self._metrics = metrics
        self._clock = clock or (lambda: asyncio.get_running_loop().time())
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    def arrived(self, namespace: str, named: SessionName, own: ClientHints) -> SequenceClaim | None:
        """A request of a session that offers tools. Returns: its claim, if it makes none itself."""
        observed = self.times.on_request(namespace, named, self._clock(), offers_tools=True)
        if observed is not None:
            for tool in observed.tools:
                self._metrics.paused(tool, observed.seconds)
            self._arm()
        inferred = self.times.acts and own is ClientHints.NONE
        return pause_claim(named, self.times.limits) if inferred else None

    def answered(self, namespace: str, hints: OrderHints, tools: Collection[str]) -> None:
        """A request's answer is complete. `tools`: those that it ends by calling."""
        if hints.pauses is not None and not self._closed:
            self.times.on_answer(namespace, hints.pauses, tools, self._clock(), hints.own)
            self._arm()

    def hinted(self, namespace: str, sessions: Collection[str]) -> None:
        """Cancel what is to be sent for sessions that a client sends actions for."""
        for session in sessions:
            self.times.on_hint(namespace, session)

    def close(self) -> None:
        """Send nothing more."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._task is not None:
            self._task.cancel()

    def waits(self) -> bool:
        """Whether a timer or a send is pending."""
        return self._timer is not None or self._task is not None

    def _arm(self) -> None:
        """Set the timer to the core's next time, unless a send is under way, which does so at its end."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due = self.times.next_due()
        if self._task is None and not self._closed and isfinite(due):
            delay_s = max(0.0, due - self._clock())
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._fire)

    def _fire(self) -> None:
        self._timer = None
        self._task = asyncio.ensure_future(self._send(self.times.on_due(self._clock())))
        self._task.add_done_callback(self._sent)

    def _sent(self, _: "asyncio.Task[None]") -> None:
        self._task = None
        if not self._closed:
            self._arm()

    async def _send(self, due: Sequence[tuple[str, tuple[HintAction, ...]]]) -> None:
        for namespace, actions in due:
            outcomes = await self._servers.send(namespace, actions)
            for action, outcome in zip(actions, outcomes, strict=True):
                self._metrics.hinted(action.verb.value, outcome.status.value)
