"""Sends actions to the memory servers, remembers recent requests, and counts outcomes."""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Coroutine, Sequence
from functools import partial
from typing import Any, Protocol

from serving.gateway.api.hints.breakpoints import PrefixLengths
from serving.gateway.api.hints.pauses import PauseDesk
from serving.gateway.api.settings import ServedModel
from serving.gateway.core.kv_hints import (
    HintLimits,
    HintPlan,
    OrderHints,
    PlannedAction,
    SessionName,
    joined_steps,
    kind_of,
)
from serving.gateway.core.recent_requests import RecentRequests
from serving.telemetry.metrics import GatewayMetrics
from serving.values.kv_hints import HintAction, HintOutcome, HintStatus, HintVerb, SessionFacts

MOST_UNDER_WAY = 256
"""Sends that no client waits for; further ones are dropped."""
MOST_LATER = 4096
"""Actions that wait for their time."""

NO_POOL = HintOutcome(HintStatus.REJECTED, reason="this server runs without a KV-cache pool")


MOST_SESSIONS = 200
"""Sessions in one list, those with the latest claims."""


class KvHints(Protocol):
    """The memory servers, each of which acts on its own blocks."""

    async def send(self, namespace: str, actions: Sequence[HintAction]) -> Sequence[HintOutcome]:
        """Outcomes of the actions on all servers together, in order. Never raises, and has a deadline of its own."""
        ...

    async def sessions(self, namespace: str, limit: int) -> tuple[Sequence[SessionFacts], bool]:
        """Sessions of a namespace, those with the latest claims, and whether every server responded. Never raises."""
        ...


class HintDesk:
    """One gateway's part in KV hints. Used from its event loop.

    Args:
        servers: None if there is no pool.
        pauses: None = tool pauses are not learned.
        later: calls a function after some seconds; None = by the event loop.
    """

    def __init__(
        self,
        servers: KvHints | None,
        model: ServedModel,
        limits: HintLimits,
        metrics: GatewayMetrics,
        pauses: PauseDesk | None = None,
        later: Callable[[float, Callable[[], None]], object] | None = None,
    ) -> None:
        self.servers = servers
        self.limits = limits
        self.pauses = pauses
        self.recent = RecentRequests()
        self.lengths = PrefixLengths(model)
        self._metrics = metrics
        self._later = later
        self._waiting = 0
        self._tasks: set[asyncio.Task[None]] = set()

    async def done(self, namespace: str, plan: HintPlan) -> list[dict[str, Any]]:
        """Send the actions of a plan. Returns: the outcomes of all its actions, as clients read them."""
        if self.pauses is not None:
            self.pauses.hinted(namespace, {one.action.session for one in plan.now})
        sent = await self._send(namespace, plan.now)
        outcomes = plan.outcomes(sent, self.limits.block_tokens)
        for one in outcomes:
            self._metrics.hinted(kind_of(one.action_type), one.outcome.value)
        return [
            {
                "action_id": one.action_id,
                "outcome": one.outcome.value,
                "tokens": one.tokens,
                "of_tokens": one.of_tokens,
                "reason": one.reason,
            }
            for one in outcomes
        ]

    def start(self, namespace: str, plan: HintPlan) -> None:
        """Send the actions of a plan without waiting for outcomes."""
        self._behind(self.done(namespace, plan))

    def at_end(
        self, namespace: str, hints: OrderHints, before_end: Callable[[], Awaitable[None]] | None
    ) -> Callable[[], Awaitable[None]]:
        """Sends what takes effect after a response, without waiting for it.

        Args:
            before_end: what else is to be done then.
        """

        async def end() -> None:
            self._behind(self._send(namespace, hints.at_end, count=True))
            if before_end is not None:
                await before_end()

        return end

    def called(self, namespace: str, hints: OrderHints | None) -> Callable[[Collection[str]], None] | None:
        """Receiver of the tools that a response ends by calling; None if its session's pauses are not learned."""
        if self.pauses is None or hints is None or hints.pauses is None:
            return None
        return partial(self.pauses.answered, namespace, hints)

    async def touch(self, namespace: str, named: SessionName) -> HintOutcome:
        """Renew the claims of a session."""
        action = HintAction(HintVerb.TOUCH, named.session, named.branch)
        sent = await self._send(namespace, [PlannedAction("", action)], count=True)
        return sent[""]

    async def _send(
        self, namespace: str, planned: Sequence[PlannedAction], *, count: bool = False
    ) -> dict[str, HintOutcome]:
        """Outcomes by id of the action. Effects: delayed actions are sent when their time has come."""
        if not planned:
            return {}
        if self.servers is None:
            return {one.action_id: NO_POOL for one in planned}
        now = [one for one in planned if not one.delay_s]
        for one in planned:
            if one.delay_s:
                self._wait(namespace, one)
        answers = await self.servers.send(namespace, [one.action for one in now]) if now else ()
        steps: dict[str, list[HintOutcome]] = defaultdict(list)
        for one, answer in zip(now, answers, strict=True):
            steps[one.action_id].append(answer)
            if count:
                self._metrics.hinted(one.action.verb.value, answer.status.value)
        return {name: joined_steps(some) for name, some in steps.items()}

    def _wait(self, namespace: str, planned: PlannedAction) -> None:
        if self._waiting >= MOST_LATER:
            self._metrics.hinted(planned.action.verb.value, HintStatus.REJECTED.value)
            return
        self._waiting += 1

        def due() -> None:
            self._waiting -= 1
            self._behind(self._send(namespace, [PlannedAction("", planned.action)], count=True))

        (self._later or asyncio.get_running_loop().call_later)(planned.delay_s, due)

    def _behind(self, work: Coroutine[Any, Any, object]) -> None:
        if len(self._tasks) >= MOST_UNDER_WAY:
            work.close()
            self._metrics.hinted("dropped", HintStatus.REJECTED.value)
            return

        async def run() -> None:
            await work

        task = asyncio.ensure_future(run())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
