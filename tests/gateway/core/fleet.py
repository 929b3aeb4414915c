"""Instances as a gateway sees them, without engines: they work on command, and their events wait for delivery."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import inf

from serving.ids import NodeId, ReplicaId, SequenceId
from serving.values.instances import Status
from serving.values.news import Adopted, FailKind, Leaving, Lost, News, Prefilled, Refused, Tokens
from serving.values.orders import Add, Adopt, Cancel, Order, Release, Submission
from serving.values.sequence import FinishReason, HandoffTicket, PoolUse, SequenceSpec
from tests.fakes.executor import fake_logprob, fake_token

KV_BLOCKS = 100


@dataclass
class Work:
    """One submission at an instance."""

    order: Submission
    decodes: bool
    adopted: bool = False
    orphaned: bool = False
    """Its link has been down since it arrived: its sender considers it lost."""
    output: list[int] = field(default_factory=list)

    @property
    def spec(self) -> SequenceSpec:
        """The sequence to compute."""
        return self.order.spec

    @property
    def begun(self) -> bool:
        """Whether it has produced tokens on this instance, or its KV has arrived."""
        return self.adopted or len(self.output) > len(self.spec.output)

    def sample(self) -> tuple[int, FinishReason | None]:
        """The next token."""
        sampling = self.spec.sampling
        token = fake_token([*self.spec.prompt, *self.output], sampling, len(self.output))
        self.output.append(token)
        if token in sampling.stop_token_ids:
            return token, FinishReason.STOP
        return token, FinishReason.LENGTH if len(self.output) >= sampling.max_tokens else None


class Fleet:
    """All instances, up or not."""

    def __init__(self, pools: Iterable[str]) -> None:
        self.instances = [
            FakeInstance(self, ReplicaId(f"{pool}#{number}"), pool) for pool in pools for number in range(2)
        ]
        self.named = {one.replica: one for one in self.instances}
        self.made = 0

    def up(self) -> list["FakeInstance"]:
        """Instances with a usable link, as far as the gateway is informed."""
        return [one for one in self.instances if one.up]

    def working(self) -> list[tuple["FakeInstance", Work]]:
        """Running submissions of all instances."""
        return [(one, work) for one in self.instances for work in one.works.values()]

    def sound(self, pool: str, since: float) -> list["FakeInstance"]:
        """Instances of a pool that have reported healthy since then."""
        return [one for one in self.up() if one.pool == pool and one.sound_at >= since]

    def works_on(self, name: SequenceId | None) -> bool:
        """Whether a reachable instance computes a submission for its sender."""
        at = [(one, work) for one, work in self.working() if work.spec.sequence_id == name]
        return any(one.up and not one.cut and not work.orphaned for one, work in at)

    def speaking(self) -> list["FakeInstance"]:
        """Instances with undelivered events."""
        return [one for one in self.instances if one.frames]


class FakeInstance:
    """A fake instance.

    Attributes:
        up: its link is usable. cut: commands are lost, and the gateway has not noticed yet.
        works, held: running submissions, and blocks that wait to be pulled.
        frames: events in transit to the gateway.
        sound_at: time of its last healthy report.
    """

    def __init__(self, fleet: Fleet, replica: ReplicaId, pool: str) -> None:
        self.fleet = fleet
        self.replica = replica
        self.pool = pool
        self.up = self.cut = self.draining = self.full = False
        self.sound_at = -inf
        self.works: dict[SequenceId, Work] = {}
        self.held: dict[str, SequenceId] = {}
        self.frames: list[News] = []

    def status(self, *, stuck: bool = False) -> Status:
        """Current load."""
        queued = sum(len(work.spec.prompt) for work in self.works.values() if not work.begun)
        age, limit = (9.0, 5.0) if stuck else (0.0, 5.0)
        # Where keys share, the gateway keeps to so few seats, so that some requests wait for them.
        load = (queued, 0, len(self.works), KV_BLOCKS, self.draining, age, 100.0, limit)
        return Status(*load, max_sequences=1, max_step_tokens=8)

    def lose_link(self) -> None:
        """Lose the link: the instance keeps working, and its sent events may still arrive."""
        self.up = self.cut = False
        for work in self.works.values():
            work.orphaned = True

    def die(self) -> None:
        """Lose all state. Effects: events already sent may still arrive."""
        self.draining = self.full = False
        self.works.clear()
        self.held.clear()

    def take(self, order: Order) -> None:
        """Receive a command."""
        match order:
            case Add() | Adopt():
                self._submit(order)
            case Cancel(sequence_id=name):
                self.works.pop(name, None)
                self.held = {ticket: whose for ticket, whose in self.held.items() if whose != name}
            case Release(ticket_id=ticket_id):
                self.held.pop(ticket_id, None)

    def _submit(self, order: Submission) -> None:
        spec, back = order.spec, isinstance(order, Adopt) and order.ticket.source == self.replica
        assert spec.sequence_id not in self.works, "each submission has a name of its own"
        if self.draining and not back:
            self.frames.append(Refused(spec.sequence_id, FailKind.DRAINING, "it drains"))
        elif self.full and not back:
            self.frames.append(Refused(spec.sequence_id, FailKind.OVERLOADED, "it is full", 2.0))
        else:
            decodes = self.pool != "prefill" or spec.whole or isinstance(order, Adopt)
            self.works[spec.sequence_id] = Work(order, decodes, output=list(spec.output))

    def work(self, work: Work, count: int) -> None:
        """One step for one sequence: its KV arrives, or it gets up to this many tokens."""
        spec, name = work.spec, work.spec.sequence_id
        if isinstance(work.order, Adopt) and not work.adopted:
            self._pull(work, work.order.ticket)
            return
        position, tokens, reason = len(work.output), [], None
        for _ in range(count if work.decodes else 1):
            token, reason = work.sample()
            tokens.append(token)
            if reason is not None:
                break
        history = [*spec.prompt, *work.output[:position]]
        logprobs = tuple(fake_logprob([*history, *tokens[:at]], token) for at, token in enumerate(tokens))
        once = (4, PoolUse(2, 1, "timeout"), 0.25) if position == len(spec.output) else (None, None, None)
        news = Tokens(name, position, tuple(tokens), logprobs, (), once[0], reason, once[1], None, once[2])
        if reason is None and not work.decodes:
            self._hold(news)
            return
        self.frames.append(news)
        if reason is not None:
            del self.works[name]

    def _pull(self, work: Work, ticket: HandoffTicket) -> None:
        source = self.fleet.named[ticket.source]
        if ticket.ticket_id not in source.held:
            self.fail(work, Lost(work.spec.sequence_id, "HandoffError: the blocks are gone"))
            return
        if source is self:
            del self.held[ticket.ticket_id]
        work.adopted = True
        self.frames.append(Adopted(work.spec.sequence_id, ticket.ticket_id))

    def _hold(self, first: Tokens) -> None:
        """Keep blocks until they are pulled."""
        self.fleet.made += 1
        name = f"t{self.fleet.made}"
        del self.works[first.sequence_id]
        self.held[name] = first.sequence_id
        ticket = HandoffTicket(name, self.replica, NodeId("n"), "/s", "l", 1, ())
        self.frames.append(Prefilled(first, ticket))

    def expire(self, ticket_id: str) -> None:
        """Expire a lease."""
        self.frames.append(Lost(self.held.pop(ticket_id), "its handoff expired"))

    def fail(self, work: Work, news: News) -> None:
        """Fail a sequence."""
        del self.works[work.spec.sequence_id]
        self.frames.append(news)

    def drain(self) -> None:
        """Drain: hold streams, and offer all other sequences."""
        self.draining = True
        for name, work in list(self.works.items()):
            taken_back = isinstance(work.order, Adopt) and work.order.ticket.source == self.replica
            if work.decodes and work.begun and not taken_back:
                self._hold(Tokens(name, len(work.output)))
            elif not work.begun and not taken_back:
                self.frames.append(Leaving(name, handoff=isinstance(work.order, Adopt)))
