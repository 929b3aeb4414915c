"""Prefill and decode engines with their gateway's journals in one thread: the whole path without Ray, time or tensors.

The cluster itself only acts as the link: it delivers events to the journals and commands to the engines, immediately
and in order. Tests trigger steps, pulls and time.
"""

from dataclasses import dataclass, field

from msgspec.structs import replace

from serving.errors import UnavailableError
from serving.gateway.core.journal_commands import AtSource, NeedDecode, NeedPrefill, NeedTrial
from serving.gateway.core.request_journal import Commands, SequenceJournal
from serving.gateway.core.route_decision import InstanceView
from serving.gateway.core.router import route_decode, route_prefill
from serving.ids import NodeId, ReplicaId
from serving.instance.core.events import EngineMessage, HandoffClosed, HandoffReady
from serving.instance.core.settings import EngineRole, EngineSettings
from serving.values.jobs import Fail
from serving.values.news import FailKind, Leaving, News, Prefilled, Refused, Tokens
from serving.values.orders import Add, Adopt, Cancel, Order, Release, Send, Submission
from serving.values.sequence import SequenceSpec
from tests.fakes.pool import FakePool
from tests.fakes.transport import FakeFabric
from tests.instance.fake_instance import FakeInstance


@dataclass
class Record:
    """What the client of one sequence received."""

    spec: SequenceSpec
    journal: SequenceJournal
    delivered: list[Tokens] = field(default_factory=list)
    failure: Fail | None = None
    cancelled: bool = False

    @property
    def output(self) -> tuple[int, ...]:
        return tuple(token for news in self.delivered for token in news.tokens)


class Cluster:
    """Instances, journals, and the links between them."""

    def __init__(self, instances: dict[str, EngineSettings], num_blocks: int, max_attempts: int = 100) -> None:
        self.fabric = FakeFabric()
        self.pool = FakePool()
        self.instances = {
            ReplicaId(name): FakeInstance(ReplicaId(name), settings, num_blocks, self.fabric, self.pool)
            for name, settings in instances.items()
        }
        self.max_attempts = max_attempts
        self.records: dict[str, Record] = {}
        self.now = 0.0
        self.lose_releases = False
        self._routes = 0
        self._num_blocks = num_blocks
        self._waiting: list[tuple[Record, NeedPrefill | NeedDecode]] = []
        """Sequences without an instance."""
        self.looks_ahead = False
        """Steps are prepared while those before run."""
        self.at_source = 0
        """Handoffs that were decoded where they lay."""

    # ---- instances that come and go ------------------------------------------------------------------------------

    def join(self, name: str, settings: EngineSettings) -> FakeInstance:
        """Add an instance. Effects: it takes waiting sequences."""
        replica = ReplicaId(name)
        instance = FakeInstance(replica, settings, self._num_blocks, self.fabric, self.pool)
        self.instances[replica] = instance
        self.look_again()
        return instance

    def leave(self, name: ReplicaId) -> None:
        """Remove an instance that has no work left."""
        instance = self.instances.pop(name)
        assert instance.engine.idle()
        assert not instance.busy
        instance.engine.check()
        del self.fabric.transports[name]

    def kill(self, name: ReplicaId) -> None:
        """Remove an instance with all its sequences."""
        del self.instances[name]
        del self.fabric.transports[name]
        for record in list(self.records.values()):
            self._carry_out(record, record.journal.instance_lost(name))
        self.carry_news()

    def look_again(self) -> None:
        """Retry the sequences that found no instance."""
        waiting, self._waiting = self._waiting, []
        for record, need in waiting:
            if not record.journal.done:
                self._route(record, need)
        self.carry_news()

    # ---- client side ---------------------------------------------------------------------------------------------

    def submit(self, spec: SequenceSpec) -> Record:
        record = Record(spec, SequenceJournal(spec, self.now, self.max_attempts))
        self.records[spec.sequence_id] = record
        self._carry_out(record, record.journal.start())
        self.carry_news()
        return record

    def cancel(self, record: Record) -> None:
        record.cancelled = record.cancelled or not record.journal.done
        self._carry_out(record, record.journal.cancel())
        self.carry_news()

    # ---- moving on -----------------------------------------------------------------------------------------------

    def carry_news(self) -> None:
        """Deliver events to the journals until there are none."""
        moved = True
        while moved:
            moved = False
            for instance in self.instances.values():
                for event in instance.engine.take_events():
                    moved = True
                    self._news(instance, event)

    def run(self, rounds: int = 1) -> None:
        """Let every instance do its pulls and one step, `rounds` times."""
        for _ in range(rounds):
            self.now += 0.01
            for instance in self.instances.values():
                while instance.pulls:
                    instance.end_pull(0, self.now)
                while instance.fetches:
                    instance.end_fetch(0, self.now)
                while instance.stores:
                    instance.end_store(0, self.now)
                if self.looks_ahead:
                    instance.foresee(self.now)
                instance.end_step(self.now)
                self.carry_news()
                instance.begin_step(self.now)
                self.carry_news()

    def run_until_idle(self, max_rounds: int = 100_000) -> int:
        """Run until no engine has a sequence; skips idle time."""
        for done in range(max_rounds):
            if all(i.engine.idle() and not i.busy for i in self.instances.values()):
                return done
            self.run()
            if not any(i.busy for i in self.instances.values()):
                wakes = [i.wake_at for i in self.instances.values() if i.wake_at is not None]
                if wakes:
                    self.now = max(self.now, min(wakes))
        raise AssertionError("the engines did not come to rest")

    def check(self) -> None:
        for instance in self.instances.values():
            instance.engine.check()

    def assert_empty(self) -> None:
        """Assert that no state is left in any part."""
        for instance in self.instances.values():
            snapshot = instance.engine.snapshot(self.now)
            assert instance.engine.idle()
            assert snapshot.kv_blocks_used == 0
            assert (snapshot.waiting, snapshot.running, snapshot.held, snapshot.pulling) == (0, 0, 0, 0)
            assert (snapshot.fetching, snapshot.storing_blocks) == (0, 0)
            assert instance.transport.registered == {}
            instance.engine.check()

    # ---- the links -----------------------------------------------------------------------------------------------

    def _news(self, instance: FakeInstance, event: EngineMessage) -> None:
        if isinstance(event, HandoffClosed):
            instance.transport.withdraw(event.ticket_id)
            return
        if isinstance(event, Leaving) and not self._elsewhere(event.handoff):
            return
        record = self.records[event.sequence_id.rsplit("@", 1)[0]]
        if isinstance(event, HandoffReady):
            ticket = instance.transport.register(event.ticket_id, event.blocks, event.hashes, event.computed_tokens)
            news: News = Prefilled(event.first, replace(ticket, drafts=event.drafts))
        else:
            news = event
        self._carry_out(record, record.journal.on_instance_event(news))

    def _carry_out(self, record: Record, commands: Commands) -> None:
        for command in commands:
            match command:
                case NeedPrefill() | NeedDecode():
                    self._route(record, command)
                case NeedTrial(lost=None):
                    self._route(record, NeedPrefill(command.tokens, command.exclude))
                case NeedTrial(lost=lost) if lost is not None:  # no request is poison here
                    self._carry_out(record, record.journal.judged(lost, alone=False))
                case Send():
                    self._order(record, command.replica, command.order)
                case Tokens():
                    record.delivered.append(command)
                case Fail():
                    record.failure = command

    def _route(self, record: Record, need: NeedPrefill | NeedDecode) -> None:
        """Route like a gateway: immediately, or at the source, or when an instance joins."""
        self._routes += 1
        turn, journal = self._routes, record.journal
        try:
            if isinstance(need, NeedPrefill):
                views = self._staying(EngineRole.PREFILL, EngineRole.AGGREGATED) or self._staying(EngineRole.DECODE)
                chosen = route_prefill(views, need.tokens, turn, 60.0, need.exclude)
                self._carry_out(record, journal.prefill_routed(chosen.replica, self.now))
            elif need.at_source is AtSource.NOW:
                raise UnavailableError("nobody else takes it")
            else:
                views = self._staying(EngineRole.DECODE, EngineRole.AGGREGATED)
                chosen = route_decode(views, len(need.ticket.blocks), turn, 60.0, need.exclude)
                self._carry_out(record, journal.decode_routed(chosen.replica, self.now))
        except UnavailableError:
            if isinstance(need, NeedDecode) and need.at_source is not AtSource.AFTER_GRACE:
                self.at_source += 1
                self._carry_out(record, journal.decode_at_source(self.now))
            else:
                self._waiting.append((record, need))

    def decode_at_source(self) -> None:
        """The grace period is over: sequences that wait for a decode instance are decoded at their source."""
        waiting, self._waiting = self._waiting, []
        for record, need in waiting:
            if isinstance(need, NeedDecode) and not record.journal.done:
                self.at_source += 1
                self._carry_out(record, record.journal.decode_at_source(self.now))
            else:
                self._waiting.append((record, need))
        self.carry_news()

    def _elsewhere(self, handoff: bool) -> bool:
        roles = (EngineRole.DECODE, EngineRole.AGGREGATED)
        return bool(self._staying(*roles) or (not handoff and self._staying(EngineRole.PREFILL)))

    def _staying(self, *roles: EngineRole) -> list[InstanceView]:
        return [view for view in self._views(*roles) if not view.draining]

    def _order(self, record: Record, replica: ReplicaId, order: Order) -> None:
        match order:
            case Add() | Adopt():
                self._submit(record, replica, order)
            case Release():
                if not self.lose_releases and replica in self.instances:
                    self.instances[replica].engine.release(order.ticket_id, self.now, distrust=order.distrust)
            case Cancel() if replica in self.instances:
                self.instances[replica].engine.cancel(order.sequence_id, self.now)

    def _submit(self, record: Record, replica: ReplicaId, order: Submission) -> None:
        engine = self.instances[replica].engine
        if isinstance(order, Add):
            refused = engine.add(order.spec, self.now)
        else:
            refused = engine.adopt(order.spec, order.ticket, self.now)
        if refused is not None:
            assert not isinstance(refused, Refused) or refused.kind is not FailKind.ENGINE, refused
            self._carry_out(record, record.journal.on_instance_event(refused))

    def _views(self, *roles: EngineRole) -> list[InstanceView]:
        views = []
        for replica, instance in self.instances.items():
            role = instance.engine.settings.role
            if role in roles:
                s = instance.engine.snapshot(self.now)
                sequences = s.waiting + s.running + s.pulling
                free = s.kv_blocks_total - s.kv_blocks_used
                views.append(
                    InstanceView(
                        replica, role.value, NodeId("node"), s.queued_tokens, sequences, free, s.kv_blocks_total,
                        draining=s.draining,
                    )
                )  # fmt: skip
        return views
