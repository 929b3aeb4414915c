"""A gateway in virtual time: the live one's journal, admission and routing policy, driven by events.

arrival ──gateway_s──► admitted or queued or 429 ──► journal ──commands──► instances ──news──► journal ...
"""

import math
from collections import deque

from msgspec.structs import replace

from serving.config.gateway import GatewayConfig
from serving.engine.placeholder import mix64, placeholder_prompt
from serving.errors import UnavailableError
from serving.ids import BlockHash, ReplicaId, SequenceId
from serving.policy import journal_commands as c
from serving.policy.admission_queue import AdmissionQueue
from serving.policy.gateway_admission import AdmissionLimits, Applicant
from serving.policy.output_reserve import RESERVE_TOKENS
from serving.policy.request import FinishReason, HandoffTicket, PoolUse, SamplingParams, SequenceSpec
from serving.policy.request_journal import Commands, SequenceJournal
from serving.sim.core.directory import Directory
from serving.sim.core.events import EventQueue
from serving.sim.core.journal_book import Book
from serving.sim.core.router import VirtualRouter
from serving.sim.result import Outcome

RETRY_S = 0.1


class Flight:
    """One request under way."""

    __slots__ = ("came_s", "hashes", "journal", "need", "row", "spec", "started_s", "waiting_since")

    def __init__(self, row: int, hashes: tuple[BlockHash, ...], spec: SequenceSpec, now: float) -> None:
        self.row = row
        self.hashes = hashes
        self.spec = spec
        self.came_s = self.started_s = now
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
        self._limits = AdmissionLimits(
            config.max_queued_requests, config.max_queued_tokens, config.max_running_sequences
        )
        self._door = AdmissionQueue(self._limits)
        self._waiting: dict[int, Flight] = {}
        """By row."""
        self._letting_in = self._polling = False
        self._closed_since: float | None = None
        self._flights: dict[str, Flight] = {}
        self._roleless: dict[str, int] = {}
        """Known tokens of those under way that no instance could take."""
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
        now = self._queue.now
        sampling = SamplingParams(max_tokens=output, temperature=0.0, seed=mix64(self._seed ^ mix64(row)))
        spec = SequenceSpec(
            SequenceId(f"{self._name}-{row}/0"),
            placeholder_prompt(prompt),
            sampling,
            time_left_s=self._config.request_timeout_s,
            prompt_hashes=hashes,
        )
        deadline = now + spec.time_left_s
        one = Applicant(row, 1, prompt, min(output, RESERVE_TOKENS), deadline, mark=row)
        is_open = self.router.open()
        decision = self._door.offer(one, len(self._flights), now, is_open)
        if not decision.accepted:
            self._book.decided(now, "reject", self._name, "429", decision.reason)
            self._book.end(row, Outcome.REJECTED, now)
            return
        self._waiting[row] = Flight(row, hashes, spec, now)
        self._deadlines.append((deadline, str(spec.sequence_id)))
        if not self._sweeping:
            self._sweeping = True
            self._queue.at(deadline, self._sweep)
        if is_open:
            self._let_in()
        else:
            self._poll()

    def instance_lost(self, name: ReplicaId) -> None:
        """An instance is gone; whatever it worked on is sent elsewhere."""
        self.router.forget(name)
        for key in list(self._flights):
            flight = self._flights.get(key)
            if flight is not None and flight.journal is not None:
                before = flight.journal.attempts.total
                self._carry_out(key, flight, flight.journal.instance_lost(name))
                self._book.hit += flight.journal.attempts.total - before

    def crash(self, until_s: float) -> int:
        """The process is gone until then, with all of its connections: their requests fail.

        Returns: requests that were lost.
        """
        lost = [*self._flights.items()]
        waiting = [*self._waiting.values()]
        self._waiting.clear()
        self._door = AdmissionQueue(self._limits)
        for key, flight in lost:
            if flight.journal is not None and not flight.journal.done:
                self._carry_out(key, flight, flight.journal.give_up(c.FailKind.UNAVAILABLE, "the gateway was lost"))
        for flight in waiting:
            self._book.end(flight.row, Outcome.FAILED, self._queue.now)
        self._down_until = max(self._down_until, until_s)
        return len(lost) + len(waiting)

    @property
    def open_requests(self) -> int:
        """Under way or waiting."""
        return len(self._flights) + len(self._waiting)

    def waiting(self) -> tuple[int, int]:
        """Requests that wait here, for their turn or for an instance to come up, and their known tokens."""
        return (
            len(self._waiting) + len(self._roleless),
            self._door.tokens + sum(self._roleless.values()),
        )

    def abandon(self) -> None:
        """The simulation stops: what is under way stays unfinished."""
        for flight in [*self._flights.values(), *self._waiting.values()]:
            self._book.end(flight.row, Outcome.UNFINISHED, self._queue.now)

    def _let_in(self) -> None:
        """Start those whose turn it is. A start may end a request at once, which would call this again."""
        if self._letting_in or not self._waiting:
            return
        if not self.router.open():
            self._poll()
            return
        self._letting_in = True
        while (row := self._door.take(len(self._flights), self._queue.now)) is not None:
            self._start(self._waiting.pop(row))
        self._letting_in = False

    def _start(self, flight: Flight) -> None:
        key = str(flight.spec.sequence_id)
        flight.started_s = self._queue.now
        flight.journal = journal = SequenceJournal(flight.spec, flight.came_s, self._max_attempts)
        self._flights[key] = flight
        self._carry_out(key, flight, journal.start())

    def _poll(self, _: object = None) -> None:
        """While requests wait for any instance at all, look for one; they do not wait for ever."""
        now = self._queue.now
        if self.router.open() or not self._waiting:
            self._closed_since = None
            self._polling = False
            self._let_in()
            return
        if _ is None and self._polling:
            return
        self._polling = True
        self._closed_since = now if self._closed_since is None else self._closed_since
        if now - self._closed_since > self._config.role_wait_s:
            self._give_up(self._door.overdue(now, now - self._config.role_wait_s), "unavailable")
        self._queue.at(now + RETRY_S, self._poll, True)

    def _give_up(self, rows: tuple[int, ...], kind: str) -> None:
        for row in rows:
            flight = self._waiting.pop(row)
            self._book.decided(self._queue.now, "fail", str(flight.spec.sequence_id), kind, "it was never started")
            self._book.end(row, Outcome.FAILED, self._queue.now)

    def _sweep(self, _: object) -> None:
        """Requests whose time is over."""
        deadlines = self._deadlines
        self._give_up(self._door.overdue(math.nextafter(self._queue.now, math.inf)), "deadline")
        while deadlines and (deadlines[0][0] <= self._queue.now or not self._knows(deadlines[0][1])):
            _, key = deadlines.popleft()
            flight = self._flights.get(key)
            if flight is not None and flight.journal is not None:
                commands = flight.journal.give_up(c.FailKind.DEADLINE, "the request's time is over")
                self._carry_out(key, flight, commands)
        self._sweeping = bool(deadlines)
        if deadlines:
            self._queue.at(deadlines[0][0], self._sweep)

    def _knows(self, key: str) -> bool:
        return key in self._flights or int(key[len(self._name) + 1 : -2]) in self._waiting

    def _close(self, key: str, flight: Flight, outcome: Outcome) -> None:
        self._book.end(flight.row, outcome, self._queue.now)
        del self._flights[key]
        self._roleless.pop(key, None)
        self.router.ended(key)
        self._door.finished(self._queue.now - flight.started_s)
        self._let_in()

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
                    self.router.grew(key, len(command.tokens))
                    if command.finish_reason is not None:
                        self._close(key, flight, Outcome.FINISHED)
                case c.NeedPrefill() | c.NeedDecode():
                    self._route(key, flight, command)
                case c.NeedTrial(lost=lost) if lost is not None:  # nothing that is simulated is poison
                    assert flight.journal is not None
                    self._carry_out(key, flight, flight.journal.judged(lost, alone=False))
                case c.NeedTrial(tokens=tokens, exclude=exclude):
                    self._route(key, flight, c.NeedPrefill(tokens, exclude))
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
        self._carry_out(key, flight, flight.journal.unsent(replica))

    def _route(self, key: str, flight: Flight, need: c.NeedPrefill | c.NeedDecode) -> None:
        """Choose an instance now, or look again in a moment."""
        journal, now = flight.journal, self._queue.now
        assert journal is not None
        if need.later:
            flight.need = replace(need, later=False)
            self._queue.at(now + c.LATER_S, self._look_again, (key, flight, flight.need))
            return
        known = len(journal.spec.prompt) + len(journal.output)
        try:
            if isinstance(need, c.NeedPrefill):
                decision = self.router.prefill(need.tokens, known, flight.hashes, need.exclude)
            else:
                left = journal.spec.sampling.max_tokens - len(journal.output)
                decision = self.router.decode(key, known, left, need.exclude)
        except UnavailableError as error:
            flight.waiting_since = now if flight.waiting_since is None else flight.waiting_since
            self._roleless[key] = known
            if now - flight.waiting_since > self._config.role_wait_s:
                self._carry_out(key, flight, journal.give_up(c.FailKind.UNAVAILABLE, str(error)))
            else:
                flight.need = need
                self._queue.at(now + RETRY_S, self._look_again, (key, flight, need))
            return
        if flight.need is not None:
            self._roleless.pop(key, None)
        flight.waiting_since = flight.need = None
        prefill = isinstance(need, c.NeedPrefill)
        self._book.decided(now, "route prefill" if prefill else "route decode", key, decision.replica, decision.reason)
        routed = journal.prefill_routed if prefill else journal.decode_routed
        self._carry_out(key, flight, routed(decision.replica, now))

    def _look_again(self, waiting: tuple[str, Flight, c.NeedPrefill | c.NeedDecode]) -> None:
        key, flight, need = waiting
        if self._flights.get(key) is flight and flight.need is need:
            self._route(key, flight, need)
