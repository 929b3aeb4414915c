"""Tool pauses of one gateway in virtual time: the live gateway's core; actions reach memory servers at once."""

from typing import NamedTuple

from serving.config.serve import ServeConfig
from serving.gateway.core.from_config import pause_times
from serving.gateway.core.kv_hints import SessionName
from serving.gateway.core.pause_times import PauseTimes, pause_claim
from serving.values.kv_hints import SequenceClaim
from serving.values.pool_view import DEFAULT_NAMESPACE
from serving.virtual.event_queue import EventQueue
from serving.virtual.memory_claims import ClaimedServers


class SessionTurn(NamedTuple):
    """A request's part in a session. `tools`: that its answer calls; a trace without names has one for all."""

    named: SessionName
    tools: tuple[str, ...] = ()


class VirtualPauses:
    """Watches the turns of sessions.

    Args:
        pool: where actions go.
    """

    def __init__(self, times: PauseTimes, pool: ClaimedServers, queue: EventQueue) -> None:
        self._times = times
        self._pool = pool
        self._queue = queue
        self._turns: dict[int, SessionTurn] = {}

    def crash(self) -> None:
        """Lose all that was learned."""
        self._times = PauseTimes(self._times.limits, acts=self._times.acts)

    def entered(self, row: int, turn: SessionTurn) -> SequenceClaim | None:
        """A turn has arrived. Returns: the claim of its request."""
        self._turns[row] = turn
        self._times.on_request(DEFAULT_NAMESPACE, turn.named, self._queue.now, offers_tools=True)
        return pause_claim(turn.named, self._times.limits) if self._times.acts else None

    def ended(self, row: int, *, finished: bool) -> None:
        """A request has ended. `finished`: with an answer."""
        turn = self._turns.pop(row, None)
        if turn is None or not finished:
            return
        before = self._times.next_due()
        self._times.on_answer(DEFAULT_NAMESPACE, turn.named, turn.tools, self._queue.now)
        if (due := self._times.next_due()) < before:
            self._queue.at(due, self._send)

    def _send(self, _: object) -> None:
        now = self._queue.now
        for namespace, actions in self._times.on_due(now):
            for action in actions:
                self._pool.hint(namespace, action, now)
        if (due := self._times.next_due()) < float("inf"):
            self._queue.at(due, self._send)


def pauses_of(config: ServeConfig, pool: ClaimedServers | None, queue: EventQueue) -> VirtualPauses | None:
    """The pauses that one gateway learns; None if it learns none."""
    times = None if pool is None else pause_times(config)
    return None if times is None or pool is None else VirtualPauses(times, pool, queue)
