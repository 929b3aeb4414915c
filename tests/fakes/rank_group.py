"""A world of ranks without processes: a `GroupPort` whose ranks die, freeze, or fail to build on demand."""

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from serving.group.core.rank_life import RankLife, RankName
from serving.group.live.group_port import (
    AnswerOperator,
    Begin,
    CloseLog,
    EndRank,
    Follow,
    FoundRanks,
    Leave,
    MoveExperts,
    QuitGroup,
    RankCall,
    RankDeadError,
    RankSilentError,
    ShowFacts,
)
from serving.values.expert_map import (
    CountRows,
    ExchangeFacts,
    ExpertMap,
    ExpertOrder,
    FetchExpert,
    LoadExpert,
    MapSwitched,
    MoveFetched,
    MoveLoaded,
    MovesEnded,
    MovesStopped,
    RankEvent,
    RowsCounted,
    SwitchMap,
)
from serving.values.group import (
    OrderAnswer,
    PostedOrder,
    RankLease,
    RankOffer,
    RankPhase,
    RankReport,
    RankRole,
    RegroupOrder,
)

EXPERTS = 4
"""Of the only layer; a rank holds two of them, and has an empty slot."""


def ordered(epoch: int, version: int, offers: tuple[RankOffer, ...]) -> RegroupOrder:
    """A command with an empty map."""
    return RegroupOrder(epoch, ExpertMap(version, (), ()), offers)


def progress(order: RegroupOrder | None, raised: int) -> tuple[tuple[int, ...], int, int, int]:
    """Progress that a rank reports of its command: members, epoch, the started epoch, version of the map."""
    if order is None:
        return (), 0, 0, 0
    return tuple(offer.pid for offer in order.offers), order.epoch, raised, order.version


Died = Callable[[RankName], None]


@dataclass
class FakeRank:
    """One rank's process."""

    name: RankName
    life: RankLife
    pid: int
    gently: bool = False
    """Whether it was built so."""
    frozen: bool = False
    node: str = "n"
    unreachable: tuple[int, ...] = ()
    """Ranks that it reports."""
    order: RegroupOrder | None = None
    map: ExpertMap | None = None
    """The latest map."""
    raised: int = 0
    streams: bool = False
    """Whether it has streams without a taker."""
    quit: bool = False
    """Whether it computes no more."""
    rows: tuple[tuple[int, ...], ...] = ((0,) * EXPERTS,)
    exchange: ExchangeFacts | None = None
    orders: list[PostedOrder] = field(default_factory=list)
    """Operators' orders in its mailbox."""
    answers: dict[str, OrderAnswer] = field(default_factory=dict)
    shown: dict[str, Any] = field(default_factory=dict)
    asked: list[ExpertOrder] = field(default_factory=list)
    """About experts."""
    loads: bool = True
    """Whether it executes load commands; else it does not respond."""
    switches: bool = True
    """The same of maps."""
    calls: list[RankCall] = field(default_factory=list)
    held: list[list[int | None]] = field(default_factory=list)
    """[layer][slot]"""
    role: RankRole = RankRole.BOTH

    @property
    def offer(self) -> RankOffer:
        """Offer of a built rank."""
        held = tuple(map(tuple, self.held))
        return RankOffer(self.name.rank, self.pid, "", "x", experts=EXPERTS, held=held, role=self.role)

    @property
    def computes_with(self) -> list[int]:
        """Processes of the epoch that it has started."""
        order = self.order
        return [offer.pid for offer in order.offers] if order is not None and order.epoch == self.raised else []

    def move(self, order: ExpertOrder) -> RankEvent | None:
        """Execute a command about experts, if it is for this rank."""
        match order:
            case CountRows():
                return RowsCounted(self.name.rank, self.rows, self.exchange)
            case MovesEnded():
                return MovesStopped(self.name.rank, self.offer.held)
            case SwitchMap(new):
                self.map = new
                return MapSwitched(new.version)
            case FetchExpert(move) if move.to.rank == self.name.rank:
                return MoveFetched(move)
            case LoadExpert(move) if move.to.rank == self.name.rank:
                self.held[move.layer][move.to.slot] = move.expert
                return MoveLoaded(move)
        return None


class FakeWorld:
    """All ranks and shells of a pool."""

    def __init__(self) -> None:
        self.ranks: dict[RankName, FakeRank] = {}
        self.shells: set[str] = set()
        self.placed: set[str] = set()
        """Groups with a placement."""
        self.unbuildable = ""
        """Why no rank can be built."""
        self.short_lived = False
        """Whether ranks end while they are built."""
        self.room = True
        self.silent_calls = 0
        """So many calls of Ray's control store get no answer."""
        self.made = 0
        self.room_for = 8
        """Ranks of a group that fit on its node."""
        self.added: set[tuple[str, int]] = set()
        """Group and rank of those with a separate placement."""
        self.founded: dict[str, int] = {}
        """Number of ranks in each group's first placement."""
        self.first_expert = 0
        """Rank from which on ranks have experts only, and others only attention; 0 = all have both."""
        self.unbuildable_ranks: set[int] = set()
        self.lone_ranks: set[int] = set()
        """Ranks that cannot join the others."""
        self.silent_at_quit = False
        self.unkillable: set[str] = set()
        """Nodes whose processes Ray does not reach."""
        self._listeners: list[Died] = []

    def port(self, died: Died) -> "FakePort":
        """A shell's port."""
        self._listeners.append(died)
        return FakePort(self)

    def lose(self, name: RankName) -> None:
        """A rank's process ends."""
        if self.ranks.pop(name, None) is not None:
            for died in self._listeners:
                died(name)

    def of(self, group: str) -> list[FakeRank]:
        """Ranks of a group, by number."""
        return [rank for name, rank in sorted(self.ranks.items()) if name.group == group]

    def store(self) -> None:
        """Query Ray's control store."""
        if self.silent_calls:
            self.silent_calls -= 1
            raise RankSilentError("Ray does not answer")


class FakePort:
    """Implements `GroupPort`; every call takes one or several turns of the event loop."""

    def __init__(self, world: FakeWorld) -> None:
        self._world = world
        self._rng = random.Random(len(world.ranks))

    async def found(self) -> FoundRanks:
        await self._turns()
        self._world.store()
        world = self._world
        room = {(group, role): world.room_for for group in world.placed for role in RankRole}
        return FoundRanks(
            tuple(world.ranks), frozenset(world.placed), frozenset(world.shells), frozenset(world.added), room
        )

    async def make(self, name: RankName, founder: RankLease, *, gently: bool) -> None:
        await self._turns()
        world = self._world
        world.store()
        assert name not in world.ranks, "no name is used twice"
        role = RankRole.BOTH
        if world.first_expert:
            role = RankRole.EXPERTS if name.rank >= world.first_expert else RankRole.ATTENTION
        if name.group not in world.placed:
            world.placed.add(name.group)
            world.founded[name.group] = founder.size
        elif name.rank - (world.first_expert if role is RankRole.EXPERTS else 0) >= world.founded[name.group]:
            world.added.add((name.group, name.rank))
        world.made += 1
        held: list[int | None] = [2 * name.rank % EXPERTS, (2 * name.rank + 1) % EXPERTS, None]
        life, slots = RankLife(founder, 0.0), [] if role is RankRole.ATTENTION else [held]
        world.ranks[name] = FakeRank(name, life, pid=1000 + world.made, gently=gently, held=slots, role=role)

    async def hold(self, name: RankName, lease: RankLease, limit_s: float) -> RankReport:
        await self._turns()
        rank = self._rank(name)
        if not self._world.room:
            raise RankSilentError("it has no placement group yet")
        if self._world.short_lived and rank.life.phase is RankPhase.LOADING:
            self._world.lose(name)
            raise RankDeadError(name.actor)
        life = rank.life
        life.hold(lease, 0.0)
        if life.phase is RankPhase.LOADING and name.rank in self._world.unbuildable_ranks:
            life.enter(RankPhase.FAILED, "no memory")
        elif life.phase is RankPhase.LOADING and self._world.unbuildable:
            life.enter(RankPhase.FAILED, self._world.unbuildable)
        elif life.phase is RankPhase.LOADING and lease.term:
            life.enter(RankPhase.OFFERED)
        elif life.phase is RankPhase.LEAVING and not rank.streams:
            life.enter(RankPhase.LEFT)
        offered = life.phase not in (RankPhase.LOADING, RankPhase.FAILED)
        offer = rank.offer if offered else None
        members, epoch, raised, _ = progress(rank.order, rank.raised)
        version = rank.map.version if rank.map is not None else 0
        return RankReport(
            life.lease,
            life.phase,
            rank.pid,
            rank.node,
            offer,
            members,
            epoch,
            raised,
            version,
            using=version if raised == epoch else 0,
            problem=life.problem,
            orders=tuple(rank.orders),
            experts=rank.order.processes(with_experts=True) if rank.order is not None else (),
            unreachable=rank.unreachable,
        )

    async def tell(self, name: RankName, call: RankCall, limit_s: float) -> tuple[RankEvent, ...]:
        await self._turns()
        rank = self._rank(name)
        if isinstance(call, MoveExperts):
            rank.asked += call.orders
        elif not isinstance(call, ShowFacts):
            rank.calls.append(call)
        match call:
            case Follow(order):
                if rank.life.phase is RankPhase.OFFERED and name.rank in self._world.lone_ranks:
                    rank.life.enter(RankPhase.FAILED, "no port is free")
                    raise RankSilentError("no port is free")
                if rank.life.phase is RankPhase.OFFERED:
                    rank.life.enter(RankPhase.SERVING)
                rank.order, rank.map = order, order.map
            case Begin(order):
                others = [
                    one
                    for one in self._world.of(name.group)
                    if one.name.rank not in order.members and one.node not in self._world.unkillable
                ]
                assert all(one.quit or not one.raised for one in others), "who has left computes no more"
                assert all(one.order == order for one in self._members(order)), "all have been told"
                rank.raised = order.epoch
            case Leave():
                assert rank.life.phase is not RankPhase.LOADING
                rank.life.enter(RankPhase.LEAVING if rank.life.phase is RankPhase.SERVING else RankPhase.LEFT)
            case MoveExperts(lease, orders):
                if lease.shell != rank.life.lease.shell:
                    raise RankSilentError("another shell holds it")
                if not rank.loads and any(isinstance(one, LoadExpert) for one in orders):
                    raise RankSilentError("no answer")
                if not rank.switches and any(isinstance(one, SwitchMap) for one in orders):
                    raise RankSilentError("no answer")
                return tuple(event for order in orders if (event := rank.move(order)) is not None)
            case QuitGroup():
                assert rank.life.phase is RankPhase.LEFT
                if self._world.silent_at_quit:
                    raise RankSilentError("no answer")
                rank.quit = True
            case ShowFacts(facts):
                rank.shown = facts
            case AnswerOperator(posted, answer):
                rank.answers[posted] = answer
                rank.orders = [one for one in rank.orders if one.id != posted]
            case EndRank() | CloseLog():
                pass
        return ()

    async def kill(self, name: RankName, report: RankReport | None) -> None:
        await self._turns()
        self._world.store()
        if name in self._world.ranks and self._world.ranks[name].node in self._world.unkillable:
            raise RankSilentError("it was killed, but does not exit")
        self._world.ranks.pop(name, None)

    async def remove(self, group: str, rank: int | None = None) -> None:
        await self._turns()
        self._world.store()
        if rank is not None:
            assert not any(name.group == group and name.rank == rank for name in self._world.ranks), "it has ended"
            self._world.added.discard((group, rank))
            return
        self._world.added = {one for one in self._world.added if one[0] != group}
        self._world.placed.discard(group)
        self._world.ranks = {name: rank for name, rank in self._world.ranks.items() if name.group != group}

    def _members(self, order: RegroupOrder) -> list[FakeRank]:
        pids = {offer.pid for offer in order.offers}
        return [rank for rank in self._world.ranks.values() if rank.pid in pids]

    def _rank(self, name: RankName) -> FakeRank:
        rank = self._world.ranks.get(name)
        if rank is None:
            raise RankDeadError(name.actor)
        if rank.frozen:
            raise RankSilentError("no answer")
        return rank

    async def _turns(self) -> None:
        for _ in range(self._rng.randrange(1, 4)):
            await asyncio.sleep(0)
