"""A gateway's core under observation: its guarantees are checked after each event."""

import math
from collections import deque

from serving.gateway.core import events as e
from serving.gateway.core.gateway import CHECK_PERIOD_S, Gateway
from serving.gateway.core.gateway_record import noted
from serving.gateway.core.journal_commands import LATER_S
from serving.gateway.core.quarantine import TOGETHER_S
from serving.gateway.core.settings import GatewaySettings
from serving.ids import SequenceId
from serving.values.decision_log import plain
from serving.values.jobs import Fail, SequenceUpdate
from serving.values.news import FailKind, Prefilled, ends
from serving.values.orders import Add, Adopt, Release, Send
from tests.gateway.core.client import Client
from tests.gateway.core.fleet import FakeInstance, Fleet

TRIAL_S = 4 * TOGETHER_S
"""How long a sequence that was near dying instances may wait until it is known what killed them."""


class WatchedGateway:
    """The core, a twin that receives the events as a decision log stores them, and a driver that carries effects out.

    Attributes:
        now: gateway time [s]; set by the owner.
        oversized: this many of the next submissions do not fit into a frame.
        losses: lost instances. invalid: jobs that may be refused as invalid.
        untold: tickets unknown to the gateway, or whose release was lost: their leases expire.
        empty_since: since when there has been no instance, and the core was woken in time [s].
    """

    def __init__(self, settings: GatewaySettings, fleet: Fleet) -> None:
        self.core, self.twin = Gateway(settings), Gateway(settings)
        self.fleet = fleet
        self.now = 100.0
        self.clients: dict[int, Client] = {}
        self.oversized = 0
        self.losses = 0
        self.invalid: set[int] = set()
        self.untold: set[str] = set()
        self.empty_since = self.now
        self.open_at = -math.inf
        """Time of the core's last poll while open."""
        self.pending: deque[e.GatewayEvent] = deque()
        """What could not be sent."""
        self.last: dict[tuple[int, int], SequenceId] = {}
        """The latest submission of each choice."""
        self.cancelled: set[SequenceId] = set()
        self.offered: set[str] = set()
        self.released: set[str] = set()

    def tell(self, event: e.GatewayEvent) -> None:
        """Deliver an event and its consequences."""
        self.pending.append(event)
        while self.pending:
            event = self.pending.popleft()
            effects = self.core.on(event, self.now)
            assert plain(self.twin.on(noted(event), self.now)) == plain(effects), "another one does the same"
            for effect in effects:
                self.carry_out(effect)
            self.core.check()
            if isinstance(event, e.Look) and self.core.open(self.now):
                self.open_at = self.now
            self.is_heeded(event)
            self.waits_no_longer_than_it_may()
            self.is_bounded()

    def is_heeded(self, event: e.GatewayEvent) -> None:
        """A sender of unwanted output gets a cancel; unsent commands are not waited for."""
        match event:
            case e.InstanceSays(replica=replica, news=news):
                reached = self.fleet.named[replica].up and not self.fleet.named[replica].cut
                self.offered.update([one.ticket.ticket_id for one in news if isinstance(one, Prefilled)])
                for one in news:
                    if ends(one) or self.is_live(name := one.sequence_id):
                        continue
                    assert name in self.cancelled or not self.fleet.works_on(name)
                    over = self.clients[self.whose(name)[0]].over
                    assert not over or not reached or name not in self.fleet.named[replica].works
            case e.Unsent(sequence_id=name) | e.TooLarge(sequence_id=name):
                assert not self.is_live(name)

    def is_live(self, name: SequenceId) -> bool:
        choice = self.core.choices.get(SequenceId(name.partition("@")[0]))
        return choice is not None and choice.journal.live_id == name

    def carry_out(self, effect: e.GatewayEffect) -> None:
        match effect:
            case Send(replica=replica):
                self.send(self.fleet.named[replica], effect)
            case SequenceUpdate():
                self.clients[effect.number].hear(effect)
            case e.JobFailed(number=number, failure=failure):
                client = self.clients[number]
                assert not client.over
                assert client.failure is None
                client.failure = failure
                self.judge(number, client, failure)
            case e.JobOver(number=number):
                assert not self.clients[number].over, "a job ends once"
                self.clients[number].over = True
                for index in range(len(self.clients[number].told)):
                    assert not self.fleet.works_on(self.last.get((number, index))), "it was told to stop"
            case e.Rejected(number=number, retry_after_s=retry_after_s):
                assert 1.0 <= retry_after_s <= 60.0
                del self.clients[number]
            case e.Routed(decision=decision):
                chosen = self.fleet.named[decision.replica]
                assert chosen.up
                if not effect.decode and chosen.draining:
                    assert not self.fleet.sound(self.core.settings.pools[0], self.now - self.core.settings.max_age_s)
            case e.Broken(trace=trace):
                raise AssertionError(trace)

    def send(self, instance: FakeInstance, effect: Send) -> None:
        order = effect.order
        if not isinstance(order, Add | Adopt):
            if isinstance(order, Release):
                self.released.add(order.ticket_id)
            else:
                self.cancelled.add(order.sequence_id)
            if instance.up and not instance.cut:
                instance.take(order)
            elif isinstance(order, Release):
                self.untold.add(order.ticket_id)
            return
        at_source = isinstance(order, Adopt) and order.ticket.source == instance.replica
        assert instance.up or at_source, "nobody is there"
        number, index = self.whose(order.spec.sequence_id)
        client = self.clients[number]
        assert not client.over, "work for a job that is over"
        assert list(order.spec.output) == client.told[index]
        assert index not in client.stopped
        assert order.spec.time_left_s <= client.deadline - self.now + 1e-6
        assert not self.fleet.works_on(self.last.get((number, index))), "two instances work on it"
        self.last[number, index] = order.spec.sequence_id
        if instance.cut or not instance.up:
            instance.sound_at = -math.inf
            self.pending.append(e.Unsent(instance.replica, order.spec.sequence_id))
        elif self.oversized:
            self.oversized -= 1
            self.invalid.add(number)
            self.pending.append(e.TooLarge(order.spec.sequence_id, "it is too long"))
        else:
            instance.take(order)

    def judge(self, number: int, client: Client, failure: Fail) -> None:
        """Every failure has a reason."""
        match failure.kind:
            case FailKind.DEADLINE:
                assert self.now >= client.deadline or "at the instance" in failure.reason
            case FailKind.INVALID:
                assert number in self.invalid
            case FailKind.POISON:
                assert self.losses >= 3
            case FailKind.UNAVAILABLE if "became available within" in failure.reason:
                assert self.now - client.submitted >= self.core.settings.role_wait_s
                assert self.now - self.open_at >= self.core.settings.role_wait_s or "no instance" not in failure.reason
            case FailKind.DRAINING:
                raise AssertionError("no request ends by it")

    @staticmethod
    def whose(name: SequenceId) -> tuple[int, int]:
        number, index = name.removeprefix("g-").partition("@")[0].split("/")
        return int(number), int(index)

    # ---- what must hold --------------------------------------------------------------------------------------------

    def alive(self) -> dict[int, Client]:
        return {number: client for number, client in self.clients.items() if not client.over}

    def waits_no_longer_than_it_may(self) -> None:
        alive = self.alive()
        assert sorted(self.core.numbers()) == sorted(alive)
        assert self.core.running + len(self.core.room) == len(alive)
        if self.pending:
            return
        wake = self.core.next_wake()
        assert wake <= min([client.deadline for client in alive.values()], default=math.inf)
        assert alive or wake == math.inf
        if self.core.starved(self.now):
            assert wake <= self.now + LATER_S

    def look(self) -> None:
        """The driver wakes the core."""
        self.tell(e.Look())
        assert self.core.next_wake() > self.now, "else it would be woken again and again"
        for number, client in self.alive().items():
            assert client.deadline > self.now
            patience_s = (
                self.core.settings.role_wait_s + 2 * CHECK_PERIOD_S + (TRIAL_S if self.suspected(number) else 0.0)
            )
            waits = self.now - max(self.empty_since, client.submitted)
            assert client.begun or waits <= patience_s, "nobody is there, and nobody came"

    def suspected(self, number: int) -> bool:
        """Whether instances were lost during a sequence of a job."""
        choices = [choice for name, choice in self.core.choices.items() if self.whose(name)[0] == number]
        return any(choice.journal.attempts.losses for choice in choices)

    def is_bounded(self) -> None:
        """Queue and concurrency stay within their limits, and admitted requests are served to the end."""
        limits = self.core.settings.limits
        may_wait = limits.max_queued_requests
        if limits.shared:  # sequences beyond the instances' capacity wait at the gateway
            may_wait += limits.max_running_sequences
        assert len(self.core.room) <= may_wait
        largest = max([len(spec.prompt) for c in self.clients.values() for spec in c.work.sequences], default=0) * 5
        half = limits.max_queued_tokens // 2
        assert len(self.core.room) <= 1 or self.core.room.tokens <= limits.max_queued_tokens + max(0, largest - half)
        most = max([len(self.clients[number].work.sequences) for number in self.core.numbers()], default=0)
        assert len(self.core.choices) <= max(limits.max_running_sequences, most)
        for client in self.clients.values():
            if client.over and client.failure is None and not client.cancelled:
                ended = [reason is not None or i in client.stopped for i, reason in enumerate(client.finish)]
                assert all(ended)
