"""Attribution of instance losses to requests: only a request that causes losses alone is condemned."""

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from serving.gateway.core.journal_commands import NeedPrefill, NeedTrial
from serving.gateway.core.quarantine import REMEMBERED_S, TOGETHER_S, Deaths
from serving.gateway.core.request_journal import Commands, SequenceJournal
from serving.ids import ReplicaId, SequenceId
from serving.values.jobs import Fail
from serving.values.news import FailKind, Tokens
from serving.values.sequence import FinishReason, SamplingParams, SequenceSpec

A, B = ReplicaId("a"), ReplicaId("b")


def test_what_dies_within_a_second_died_together() -> None:
    deaths = Deaths()
    assert deaths.settled(0.0)
    deaths.note(A, 10.0)
    assert not deaths.settled(10.0 + TOGETHER_S)
    assert deaths.settled(10.1 + TOGETHER_S)
    assert deaths.alone(A)
    assert not deaths.together(A, 10.0)
    assert deaths.together(B, 10.0 + TOGETHER_S)
    assert not deaths.together(B, 10.1 + TOGETHER_S)
    deaths.note(B, 10.0 + TOGETHER_S)
    assert not deaths.alone(A)
    assert not deaths.alone(B)


def test_what_others_worked_on_or_nobody_remembers_did_not_die_alone() -> None:
    deaths = Deaths()
    deaths.note(A, 0.0, shared=True)
    assert not deaths.alone(A)
    assert not deaths.alone(B)
    deaths.note(B, REMEMBERED_S + 1.0)
    assert deaths.alone(B)


def test_a_name_is_judged_by_its_last_death() -> None:
    deaths = Deaths()
    deaths.note(A, 0.0, shared=True)
    deaths.note(A, 5.0)
    assert deaths.alone(A)


@dataclass
class World:
    """Requests and instances of one role; each poisonous request kills the instance that computes it."""

    instances: int
    poison: list[bool]
    now: float = 0.0
    made: int = 0
    killed: int = 0
    deaths: Deaths = field(default_factory=Deaths)
    failures: dict[int, FailKind] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.alive = [self.make() for _ in range(self.instances)]
        self.needs: dict[int, NeedPrefill | NeedTrial] = {}
        self.journals: list[SequenceJournal] = []
        for number in range(len(self.poison)):
            spec = SequenceSpec(SequenceId(f"r/{number}"), (1, 2), SamplingParams(max_tokens=4))
            self.journals.append(SequenceJournal(spec, 0.0))
            self.carry_out(number, self.journals[number].start())

    def make(self) -> ReplicaId:
        self.made += 1
        return ReplicaId(f"i#{self.made}")

    def carry_out(self, number: int, commands: Commands) -> None:
        for command in commands:
            if isinstance(command, NeedPrefill | NeedTrial):
                self.needs[number] = command
            elif isinstance(command, Fail):
                self.failures[number] = command.kind

    def die(self, gone: list[ReplicaId]) -> None:
        """Instances die one after the other; sequences of each are rerouted before the next one dies."""
        for replica in gone:
            at = [number for number, journal in enumerate(self.journals) if journal.at == replica]
            self.alive[self.alive.index(replica)] = self.make()
            self.deaths.note(replica, self.now, shared=len(at) > 1)
            for number in at:
                self.carry_out(number, self.journals[number].instance_lost(replica))
            self.route([other for other in gone if other in self.alive])
            self.now += 0.01

    def route(self, among: list[ReplicaId]) -> None:
        """Route to `among` if it is not empty: an instance that is about to die looks as good as any."""
        for number, need in sorted(self.needs.items()):
            journal = self.journals[number]
            if isinstance(need, NeedPrefill):
                places = among or self.alive
                del self.needs[number]
                self.carry_out(number, journal.prefill_routed(places[number % len(places)], self.now))

    def tries(self) -> None:
        """One trial at a time, alone; the other requests wait."""
        for number, need in sorted(self.needs.items()):
            journal = self.journals[number]
            if not isinstance(need, NeedTrial) or not self.deaths.settled(self.now):
                continue
            del self.needs[number]
            if need.lost is not None:
                self.carry_out(number, journal.judged(need.lost, alone=self.deaths.alone(need.lost)))
                continue
            empty = [one for one in self.alive if all(journal.at != one for journal in self.journals)]
            if not empty:
                self.needs[number] = need
                continue
            self.carry_out(number, journal.serve_whole(empty[0], self.now))
            self.work(empty[0])

    def work(self, replica: ReplicaId) -> None:
        """The instance computes its sequences, or dies of one."""
        at = [number for number, journal in enumerate(self.journals) if journal.at == replica]
        if any(self.poison[number] for number in at):
            self.killed += 1
            return self.die([replica])
        for number in at:
            name = self.journals[number].live_id
            assert name is not None
            told = len(self.journals[number].output)
            news = Tokens(name, told, (7, 8), finish_reason=FinishReason.STOP)
            self.carry_out(number, self.journals[number].on_instance_event(news))


@given(
    instances=st.integers(2, 5),
    poison=st.lists(st.booleans(), min_size=1, max_size=8),
    hosts=st.lists(st.integers(2, 5), max_size=6),
)
@settings(max_examples=2 * settings().max_examples)
def test_innocent_requests_are_never_condemned_and_poison_soon(
    instances: int, poison: list[bool], hosts: list[int]
) -> None:
    world = World(instances, poison)
    for together in [*hosts, *[0] * 40]:
        world.route([])
        if together:
            world.die(world.alive[:together])
        for replica in list(world.alive):
            if replica in world.alive:
                world.work(replica)
        world.now += 2 * TOGETHER_S
        world.tries()
        world.now += 2 * TOGETHER_S
    assert all(journal.done for journal in world.journals)
    for number, poisonous in enumerate(poison):
        kind = world.failures.get(number)
        assert not poisonous or kind is not None
        assert poisonous or kind in (None, FailKind.UNAVAILABLE)
        if not hosts:
            assert kind is (FailKind.POISON if poisonous else None)
    assert world.killed <= 5 * sum(poison)
