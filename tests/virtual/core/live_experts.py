"""The experts of a group driven like a live shell does: `GroupMoves` itself, with ranks that count a trace's rows."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from serving.group.core.group_course import Regroup
from serving.group.core.group_experts import ExpertRules
from serving.group.core.group_map import contents_of, opening_map
from serving.group.core.rank_life import RankName
from serving.group.core.routing_trace import TraceSlice
from serving.group.live.group_moves import GroupMoves
from serving.group.live.group_port import KnownRank, MoveExperts, RankCall
from serving.values.expert_map import (
    CountRows,
    ExpertMap,
    ExpertOrder,
    FetchExpert,
    LoadExpert,
    MapSwitched,
    MoveFetched,
    MoveLoaded,
    RankEvent,
    RowsCounted,
    SwitchMap,
)
from serving.values.group import RankLease, RankOffer, RankPhase, RankReport, RankRole
from serving.virtual.expert_group import CALL_S

LEASE = RankLease("s", 1, 1, 4)


@dataclass
class LiveExperts:
    """A group of which only the shell's side is real. A `GroupPort` to its ranks, as far as experts need one.

    Runs in a `VirtualLoop`, whose time is the shell's. A switch of maps takes `CALL_S`, as in virtual time.

    Args:
        roles: of its ranks. Those with attention count the rows.
        expert_bytes: of one expert in a layer of the trace.
        changes: by number of a slice: the expert rank that is lost in it, or joins again if it is lost already.
    """

    rules: ExpertRules
    roles: Mapping[int, RankRole]
    redundant: int
    layers: int
    experts: int
    expert_bytes: int
    changes: Mapping[int, int] = field(default_factory=dict)
    rows: dict[int, list[list[int]]] = field(default_factory=dict)
    """By rank: [layer][expert] counted so far."""

    async def play(self, slices: Sequence[Sequence[TraceSlice]], slice_s: float) -> list[ExpertMap]:
        """Count rows slice by slice, half a slice after the start and once in each from then on.

        Args:
            slices: [number] those of all ranks with attention.
        Returns: the map in use at the end of each.
        """
        loop = asyncio.get_running_loop()
        self.moves = GroupMoves(self, self.rules, lambda: LEASE, loop.time)  # type: ignore[arg-type]
        self.rows = {rank: [[0] * self.experts for _ in range(self.layers)] for rank in self.roles}
        known = {rank: self._born(rank, rank + 1) for rank in self.roles}
        await self._regroup(known)
        used = []
        for rank, own in self.rows.items():  # a first count is what later ones are compared with
            self.moves.experts.on(rank, rank + 1, RowsCounted(rank, tuple(map(tuple, own))), 0.0)
        for number, one in enumerate(slices):
            await asyncio.sleep(slice_s * (number + 0.5) - loop.time())
            self._add(one)
            self._poll(known)
            await asyncio.sleep(slice_s / 4)
            ledger = self.moves.experts.ledger
            assert ledger is not None
            assert not ledger.busy
            if number in self.changes:
                rank = self.changes[number]
                known = {one: each for one, each in known.items() if one != rank} | (
                    {} if rank in known else {rank: self._born(rank, 1000 + number)}
                )
                await self._regroup(known)
            used.append(ledger.map)
        self.moves.close()
        return used

    def _born(self, rank: int, pid: int) -> KnownRank:
        """A rank that has offered, with the experts of the first map."""
        holders = [one for one, role in self.roles.items() if role.has_experts]
        opening = opening_map(self.experts, 1 + max(holders), self.redundant, self.layers, holders)
        role = self.roles[rank]
        held = contents_of(opening, rank) if role.has_experts else ()
        offer = RankOffer(rank, pid, "", "", experts=self.experts, expert_bytes=self.expert_bytes, held=held, role=role)
        return KnownRank(RankName("5e55", "g", rank, 1), report=_report(offer))

    async def _regroup(self, known: Mapping[int, KnownRank]) -> None:
        offers = tuple(one.report.offer for one in known.values() if one.report is not None and one.report.offer)
        due = Regroup(1, 1, offers)
        assert await self.moves.regroup(due, list(known.values()), 1 + max(self.roles)) is not None

    def _poll(self, known: Mapping[int, KnownRank]) -> None:
        """Do what a shell does each time that it has asked its ranks for reports."""
        ledger = self.moves.experts.ledger
        assert ledger is not None
        for rank in known.values():
            assert rank.report is not None
            rank.report = _report(rank.report.offer, ledger.map.version)
        self.moves.stuck(known, 1 + max(self.roles))

    def _add(self, slices: Sequence[TraceSlice]) -> None:
        for one in slices:
            for into, row in zip(self.rows[one.rank], one.rows, strict=True):
                into[:] = map(int.__add__, into, row)

    async def tell(self, name: RankName, call: RankCall, limit_s: float) -> Any:
        """Deliver a command; see `GroupPort`."""
        if isinstance(call, MoveExperts):
            if any(isinstance(order, SwitchMap) for order in call.orders):
                await asyncio.sleep(CALL_S)
            return tuple(event for order in call.orders for event in self._do(name.rank, order))
        return ()

    def _do(self, rank: int, order: ExpertOrder) -> Sequence[RankEvent]:
        match order:
            case CountRows():
                return [RowsCounted(rank, tuple(map(tuple, self.rows[rank])))]
            case FetchExpert(move):
                return [MoveFetched(move)]
            case LoadExpert(move):
                return [MoveLoaded(move)]
            case SwitchMap(new):
                return [MapSwitched(new.version)]
        return []


def _report(offer: RankOffer | None, using: int = 0) -> RankReport:
    """Report of a rank that has offered, or uses a map."""
    assert offer is not None
    return RankReport(LEASE, RankPhase.SERVING if using else RankPhase.OFFERED, offer.pid, "n", offer, using=using)
