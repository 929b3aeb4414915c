"""A gateway in virtual time: the live one's journal, admission and routing policy, driven by events.

arrival ──gateway_s──► admitted or queued or 429 ──► journal ──commands──► instances ──news──► journal ...
"""

from collections import deque
from typing import cast

from serving.config.gateway import GatewayConfig
from serving.engine.placeholder import PlaceholderPrompt, mix64
from serving.errors import UnavailableError
from serving.ids import BlockHash, ReplicaId, SequenceId
from serving.policy import journal_commands as c
from serving.policy.gateway_admission import AdmissionLimits, GatewayLoad, decide_admission
from serving.policy.request import FinishReason, HandoffTicket, PoolUse, SamplingParams, SequenceSpec
from serving.policy.request_journal import Commands, SequenceJournal
from serving.policy.router import ROLE_WAIT_S
from serving.sim.core.directory import Directory
from serving.sim.core.events import EventQueue
from serving.sim.core.journal_book import Book
from serving.sim.core.router import VirtualRouter
from serving.sim.result import Outcome

RETRY_S = 0.1


class Flight:
    """One request under way."""

    __slots__ = ("hashes", "journal", "need", "row", "waiting_since")

    def __init__(self, row: int, hashes: tuple[BlockHash, ...]) -> None:
        self.row = row
        self.hashes = hashes
        self.journal: SequenceJournal | None = None
        self.waiting_since: float | None = None
        self.need: c.NeedPrefill | c.NeedDecode | None = None
        """What it waits for, when there was no instance."""


class VirtualGateway:
    """Owns the requests that were sent to it.

    Args:
        seed: of the whole run; a request's own seed follows from it and its number.
    """

    def __init__(
        self,
        number: int,
        config: GatewayConfig,
        max_attempts: int,
        queue: EventQueue,
        router: VirtualRouter,
        directory: Directory,
        book: Book,
        seed: int,
    ) -> None:
        self.router = router
        self._name = f"g{number}"
        self._config = config
        self._max_attempts = max_attempts
        self._queue = queue
        self._directory = directory
        self._book = book
        self._seed = seed
        self._limits = AdmissionLimits(config.max_queued_requests, config.max_queued_tokens)
        self._flights: dict[str, Flight] = {}
        self._waiting: deque[tuple[Flight, SequenceSpec]] = deque()
        self._waiting_tokens = 0
        self._deadlines: deque[tuple[float, str]] = deque()
        self._sweeping = False
        self._down_until = 0.0

    # ---- requests --------------------------------------------------------------------------------------------------

    def submit(self, request: tuple[int, int, int, tuple[BlockHash, ...]]) -> None:
        """Take a request in.

        Args:
            request: its row, prompt tokens, output tokens, and the hashes of its full blocks.
        """
        row, prompt, output, hashes = request
        if self._queue.now < self._down_until:
            self._book.decided(self._queue.now, "fail", f"{self._name}-{row}/0", "unavailable", "the gateway is down")
            self._book.end(row, Outcome.FAILED, self._queue.now)
            return
        flight = Flight(row, hashes)
        sampling = SamplingParams(max_tokens=output, temperature=0.0, seed=mix64(self._seed ^ mix64(row)))
        spec = SequenceSpec(
            SequenceId(f"{self._name}-{row}/0"),
            cast("tuple[int, ...]", PlaceholderPrompt(prompt)),  # a sequence of as many tokens; nobody reads them
            sampling,
            time_left_s=self._config.request_timeout_s,
            prompt_hashes=hashes,
        )
        if self._waiting or len(self._flights) >= self._config.max_running_sequences:
            if not self._may_wait(prompt):
                self._book.end(row, Outcome.REJECTED, self._queue.now)
                return
            self._waiting.append((flight, spec))
            self._waiting_tokens += prompt
        else:
            self._start(flight, spec)

    def instance_lost(self, name: ReplicaId) -> None:
        """An instance is gone; whatever it worked on is sent elsewhere."""
        self.router.forget(name)
        for key in list(self._flights):
            flight = self._flights.get(key)
            if flight is not None and flight.journal is not None:
                before = flight.journal.failures
                self._carry_out(key, flight, flight.journal.instance_lost(name))
                self._book.hit += flight.journal.failures - before

    def crash(self, until_s: float) -> int:
        """The process is gone until then, with all of its connections: their requests fail.

        Returns: requests that were lost.
        """
        lost = [*self._flights.items()]
        waiting = [flight for flight, _ in self._waiting]
        self._waiting.clear()
        self._waiting_tokens = 0
        for key, flight in lost:
            if flight.journal is not None and not flight.journal.done:
                self._carry_out(key, flight, flight.journal.give_up(c.FailKind.UNAVAILABLE, "the gateway was lost"))
        for flight in waiting:
            self._book.end(flight.row, Outcome.FAILED, self._queue.now)
        self._down_until = until_s
        return len(lost) + len(waiting)

    @property
    def open_requests(self) -> int:
        """Under way or waiting."""
        return len(self._flights) + len(self._waiting)

    def abandon(self) -> None:
        """The simulation stops: what is under way stays unfinished."""
        for flight in [*self._flights.values(), *(flight for flight, _ in self._waiting)]:
            self._book.end(flight.row, Outcome.UNFINISHED, self._queue.now)

    def _may_wait(self, tokens: int) -> bool:
        load = GatewayLoad(len(self._waiting), self._waiting_tokens, 0.0)
        decision = decide_admission(load, self._limits, 1, tokens)
        if not decision.accepted or self._limits.max_queued_sequences == 0:
            self._book.decided(self._queue.now, "reject", self._name, "429", decision.reason)
            return False
        return True

    def _start(self, flight: Flight, spec: SequenceSpec) -> None:
        key = str(spec.sequence_id)
        flight.journal = journal = SequenceJournal(spec, self._queue.now, self._max_attempts)
        self._flights[key] = flight
        self._deadlines.append((journal.deadline, key))
        if not self._sweeping:
            self._sweeping = True
            self._queue.at(journal.deadline, self._sweep)
        self._carry_out(key, flight, journal.start())

    def _sweep(self, _: object) -> None:
        """Requests whose time is over."""
        deadlines = self._deadlines
        while deadlines and (deadlines[0][0] <= self._queue.now or deadlines[0][1] not in self._flights):
            _, key = deadlines.popleft()
            flight = self._flights.get(key)
            if flight is not None and flight.journal is not None:
                commands = flight.journal.give_up(c.FailKind.DEADLINE, "the request's time is over")
                self._carry_out(key, flight, commands)
        self._sweeping = bool(deadlines)
        if deadlines:
            self._queue.at(deadlines[0][0], self._sweep)

    def _close(self, key: str, flight: Flight, outcome: Outcome) -> None:
        self._book.end(flight.row, outcome, self._queue.now)
        del self._flights[key]
        while self._waiting and len(self._flights) < self._config.max_running_sequences:
            following, spec = self._waiting.popleft()
            self._waiting_tokens -= len(spec.prompt)
            self._start(following, spec)

    # ---- news ------------------------------------------------------------------------------------------------------

    def prefilled(
        self,
        sequence_id: SequenceId,
        ticket: HandoffTicket,
        position: int,
        tokens: tuple[int, ...],
        cached_tokens: int | None,
        pool: PoolUse | None,
    ) -> None:
        """See `News`."""
        key, flight = self._of(sequence_id)
        if flight is None or flight.journal is None:
            self._directory.release(ticket.source, ticket.ticket_id, distrust=False)
            return
        commands = flight.journal.handoff_ready(
            sequence_id, ticket, position, tokens, cached_tokens=cached_tokens, pool=pool
        )
        self._carry_out(key, flight, commands)

    def tokens(
        self,
        sequence_id: SequenceId,
        position: int,
        tokens: tuple[int, ...],
        finish: FinishReason | None,
        cached_tokens: int | None,
        pool: PoolUse | None,
    ) -> None:
        """See `News`."""
        key, flight = self._of(sequence_id)
        if flight is not None and flight.journal is not None:
            commands = flight.journal.tokens(
                sequence_id, position, tokens, cached_tokens=cached_tokens, finish_reason=finish, pool=pool
            )
            self._carry_out(key, flight, commands)

    def adopted(self, sequence_id: SequenceId) -> None:
        """See `News`."""
        key, flight = self._of(sequence_id)
        if flight is not None and flight.journal is not None:
            self._carry_out(key, flight, flight.journal.adopted(sequence_id))

    def lost(self, sequence_id: SequenceId, reason: str) -> None:
        """See `News`."""
        key, flight = self._of(sequence_id)
        if flight is not None and flight.journal is not None:
            self._carry_out(key, flight, flight.journal.failed(sequence_id, reason))

    def refused(self, sequence_id: SequenceId, kind: c.FailKind, reason: str) -> None:
        """See `News`."""
        key, flight = self._of(sequence_id)
        if flight is not None and flight.journal is not None:
            self._book.decided(self._queue.now, "refuse", key, kind.value, reason)
            self._carry_out(key, flight, flight.journal.refused(sequence_id, kind, reason))

    def _of(self, sequence_id: SequenceId) -> tuple[str, Flight | None]:
        key = sequence_id.rpartition("@")[0]
        return key, self._flights.get(key)

    # ---- commands --------------------------------------------------------------------------------------------------

    def _carry_out(self, key: str, flight: Flight, commands: Commands) -> None:
        for command in commands:
            match command:
                case c.Deliver():
                    self._book.deliver(flight.row, command, self._queue.now)
                    if command.finish_reason is not None:
                        self._close(key, flight, Outcome.FINISHED)
                case c.NeedPrefill() | c.NeedDecode():
                    self._route(key, flight, command)
                case c.SendPrefill(replica=replica, spec=spec):
                    self._book.sent(flight.row)
                    if not self._directory.add(replica, spec):
                        self._gone(key, flight, replica)
                case c.SendAdopt(replica=replica, spec=spec, ticket=ticket):
                    if not self._directory.adopt(replica, spec, ticket):
                        self._gone(key, flight, replica)
                case c.SendRelease(replica=replica, ticket_id=ticket_id, distrust=distrust):
                    self._directory.release(replica, ticket_id, distrust=distrust)
                case c.SendCancel(replica=replica, sequence_id=sequence_id):
                    self._directory.cancel(replica, sequence_id)
                case c.Fail():
                    self._book.decided(self._queue.now, "fail", key, command.kind.value, command.reason)
                    self._close(key, flight, Outcome.FAILED)

    def _gone(self, key: str, flight: Flight, replica: ReplicaId) -> None:
        assert flight.journal is not None
        self._carry_out(key, flight, flight.journal.instance_lost(replica))

    def _route(self, key: str, flight: Flight, need: c.NeedPrefill | c.NeedDecode) -> None:
        """Choose an instance now, or look again in a moment."""
        journal, now = flight.journal, self._queue.now
        assert journal is not None
        known = len(journal.spec.prompt) + len(journal.output)
        try:
            if isinstance(need, c.NeedPrefill):
                decision = self.router.prefill(need.tokens, known, flight.hashes, need.exclude)
            else:
                decision = self.router.decode(known, need.exclude)
        except UnavailableError as error:
            flight.waiting_since = now if flight.waiting_since is None else flight.waiting_since
            if now - flight.waiting_since > ROLE_WAIT_S:
                self._carry_out(key, flight, journal.give_up(c.FailKind.UNAVAILABLE, str(error)))
            else:
                flight.need = need
                self._queue.at(now + RETRY_S, self._look_again, (key, flight, need))
            return
        flight.waiting_since = flight.need = None
        prefill = isinstance(need, c.NeedPrefill)
        self._book.decided(now, "route prefill" if prefill else "route decode", key, decision.replica, decision.reason)
        routed = journal.prefill_routed if prefill else journal.decode_routed
        self._carry_out(key, flight, routed(decision.replica, now))

    def _look_again(self, waiting: tuple[str, Flight, c.NeedPrefill | c.NeedDecode]) -> None:
        key, flight, need = waiting
        if self._flights.get(key) is flight and flight.need is need:
            self._route(key, flight, need)
