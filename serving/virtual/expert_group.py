"""Expert-parallel groups in virtual time: the live group's core decides, this driver carries out and models the time.

    every slice   ranks count rows ─► pace, plan ─► moves: weights at `move_mib_per_s`, maps at step boundaries
    a step        as long as the experts of the busiest rank take, by the map in use and the rows of the slice
    a lost die    a map without its rank, after the published pause; its replacement joins when the fault is over
    a new size    a map with more ranks or fewer (commands: `role_changes`)

Ranks are the dies with routed experts, the first ones of the instance, by index in it. A layer of the routing stands
for several layers of the model: an expert that moves in it moves in all of them. Loading staged weights into their slot
takes no time.
"""

import math
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Protocol

from hardware.faults import DieRole, FaultKind, Recovery, recovery_time
from hardware.variation import PRODUCTION_MOE_SHARE
from serving.group.core.group_experts import ExpertRules, GroupExperts
from serving.group.core.group_map import contents_of, opening_map
from serving.group.core.placement import balancedness, rank_loads
from serving.values.expert_map import (
    ExchangeFacts,
    ExpertWork,
    FetchExpert,
    GateRule,
    LoadExpert,
    MapSwitched,
    MoveFetched,
    MoveLoaded,
    MoveOrder,
    MovesEnded,
    RowsCounted,
    SwitchMap,
)
from serving.values.group import RankOffer
from serving.virtual.decode import DecodeInstance
from serving.virtual.instance_driver import WakeTimer
from serving.virtual.result import ExpertRecord
from serving.virtual.routing import ExpertRouting, Rows

if TYPE_CHECKING:
    from serving.virtual.supernode import Supernode
    from serving.virtual.times import Slowdown


CALL_S = 0.85e-3
"""Time until a map reaches ranks between steps [s]: one call of a Ray actor. Source: measured."""


class GroupTimes(Protocol):
    """Step times of an instance, which grow with the imbalance of its experts; see `DecodeLoad`."""

    imbalance: float


class ExpertGroup:
    """The experts of one decode instance.

    Args:
        ranks: dies with routed experts.
        times, slowdown: of the instance; this class updates both from the map and the load.
        records: of all groups.
    """

    def __init__(
        self,
        node: "Supernode",
        instance: DecodeInstance,
        ranks: int,
        routing: ExpertRouting,
        rules: ExpertRules,
        times: GroupTimes,
        slowdown: "Slowdown",
        records: list[ExpertRecord],
    ) -> None:
        shape = node.cost.shape
        self._node, self._instance, self._routing, self._rules = node, instance, routing, rules
        self._times, self._slowdown, self._records = times, slowdown, records
        self._redundant = node.config.experts.redundant
        self._role = DieRole.EXPERT if node.cost.decode.parallelism.expert_dies else DieRole.COLOCATED
        self._chosen = shape.active_experts
        self._gate = GateRule(shape.active_experts)  # the cost model knows no groups of experts
        self._expert_bytes = round(
            shape.expert_weights * shape.formats.experts.bytes * shape.moe_layers / routing.layers
        )
        self._size = ranks
        self._pids: dict[int, int] = {}
        """Processes of the members, by rank."""
        self._births = 0
        self._epoch = 0
        self._slice = 0
        self._reporter = (-1, -1)
        """Rank and process that reports the rows of all ranks: plans depend only on the sums."""
        self._counted: Rows = ()
        self._fed, self._busy_s = 0, 0.0
        self._dies = GroupDies()
        self.balancedness = math.nan
        """Balancedness under the map in use and the load of this slice, mean over layers."""
        self._begun: tuple[float, float, int, str] = 0.0, 0.0, 0, ""
        """Of the moves in progress: start [s], balancedness at the start, number and reason."""
        self._timer = WakeTimer(node.queue, self._tick)
        self.core = GroupExperts(rules)
        self._form("opened", "copies are dealt out evenly", 0.0)
        node.queue.at(node.queue.now + rules.slice_s / 2, self._count)

    # ---- changes of the group ----------------------------------------------------------------------------------------

    def lose(self, dies: Sequence[int], until_s: float) -> Recovery:
        """Remove the ranks of dies that are lost until `until_s`.

        Returns: how the instance recovers: by redundant experts, without the experts that had no other copy or after
            loading them, or by a restart if no rank is left.
        """
        lost = [die for die in dies if die in self._pids]
        if not lost:
            return Recovery.REDUNDANT_EXPERTS
        for _ in lost:
            self.core.journal.lost("dead")
        if until_s < math.inf:
            self._node.queue.at(until_s, self._rejoin, lost)
        words = f"rank {', '.join(map(str, lost))} lost"
        left = {rank: pid for rank, pid in self._pids.items() if rank not in lost}
        if not left:
            self._form("lost", f"{words}, all of them: begun anew", recovery_time(FaultKind.NPU, Recovery.RESTART))
            return Recovery.RESTART
        borrowed = self._regroup(left, lacks_rank=True)
        masked = self.core.newest.masked_count if self.core.newest is not None else 0
        missing = Recovery.MISSING_EXPERTS if masked else Recovery.REDUNDANT_EXPERTS
        recovery = Recovery.ROLE_SWITCH if borrowed else missing
        pause_s = recovery_time(FaultKind.NPU, recovery, self._role)
        without = f", {masked} masked" if masked else ""
        self._enter("lost", f"{words}, {borrowed} experts borrowed{without}; pause {pause_s:.1f} s", pause_s)
        return recovery

    def resize(self, ranks: int) -> None:
        """Change the number of ranks; a new rank holds the experts that the opening map assigns to it.

        Without effect if only attention dies joined or left.
        """
        if ranks == self._size:
            return
        before, self._size = self._size, ranks
        stay = {rank: pid for rank, pid in self._pids.items() if rank < ranks}
        self._regroup(stay | self._born(range(before, ranks)))
        pause_s = self._node.config.simulation.resize_pause_s
        self._enter("resized", f"{before} ranks to {ranks}; pause {pause_s:g} s", pause_s)

    def slow(self, factors: Mapping[int, float]) -> None:
        """Set the slowdown factors of ranks' dies; dies without a factor run at full speed."""
        self._dies.slow = {die: factor for die, factor in factors.items() if factor != 1.0}
        self._look()

    def note(self, kind: str, reason: str) -> None:
        """Record a command."""
        self._note(self._node.queue.now, kind, 0, self.balancedness, reason)

    # ---- inside ------------------------------------------------------------------------------------------------------

    def _form(self, kind: str, reason: str, pause_s: float) -> None:
        self.core = GroupExperts(self._rules)
        self._regroup(self._born(range(self._size)))
        self._enter(kind, reason, pause_s)

    def _born(self, ranks: Sequence[int]) -> dict[int, int]:
        first, self._births = self._births + 1, self._births + len(ranks)
        return {rank: first + place for place, rank in enumerate(ranks)}

    def _regroup(self, pids: dict[int, int], *, lacks_rank: bool = False) -> int:
        """Form a map of these members. Returns: experts that it borrows, over all layers of the routing."""
        core, now, routing = self.core, self._node.queue.now, self._routing
        self._carry_out(core.abandon("the group's members have changed", now))
        self._dies.keep({rank for rank, pid in self._pids.items() if pid == pids.get(rank)})
        self._pids = pids
        opening = opening_map(routing.experts, self._size, self._redundant, routing.layers)
        offers = [
            RankOffer(
                rank, pid, "", "", experts=routing.experts, gate=self._gate, expert_bytes=self._expert_bytes,
                held=contents_of(opening, rank),
            )
            for rank, pid in sorted(pids.items())
        ]  # fmt: skip
        core.regroup(offers, self._size, 1, now, lacks_rank=lacks_rank)
        self._epoch += 1
        ledger = core.ledger
        assert ledger is not None
        return sum(len(ledger.borrowed(layer)) for layer in range(routing.layers))

    def _enter(self, kind: str, reason: str, pause_s: float) -> None:
        """Put the new map into use after a pause, and record the change."""
        now, before = self._node.queue.now, self.balancedness
        self._look()
        self._node.queue.at(now + pause_s, self._confirm, self._epoch)
        self._note(now, kind, 0, before, reason)

    def _confirm(self, epoch: int) -> None:
        ledger = self.core.ledger
        if epoch == self._epoch and ledger is not None:
            self.core.confirm(dict.fromkeys(self._pids, ledger.map.version), self._node.queue.now)

    def _rejoin(self, ranks: Sequence[int]) -> None:
        """Add replacements of lost ranks that are still within the size of the group."""
        missing = [rank for rank in ranks if rank < self._size and rank not in self._pids]
        if not missing or not self._instance.alive:
            return
        self._regroup(self._pids | self._born(missing))
        pause_s = self._node.config.simulation.resize_pause_s
        self._instance.stall(pause_s)
        self._enter("joined", f"rank {', '.join(map(str, missing))} replaced; pause {pause_s:g} s", pause_s)

    def _count(self, _: object) -> None:
        """Once per slice: report row counts, let the core plan, and switch to the load of the next slice."""
        node, core = self._node, self.core
        now = node.queue.now
        if not self._instance.alive:
            return
        if core.count_due(now):
            self._report(now)
            ledger = core.ledger
            assert ledger is not None
            plan = core.plan(now)
            if plan is not None:
                effects = core.begin(plan, ledger.map.version, "load", self._rules.policy, now)
                moves = sum(len(one.moves) for layer in plan.layers for one in layer.rounds)
                gain = max(min(one.gain, 1.0) for one in plan.layers)
                words = f"{len(plan.layers)} of {self._routing.layers} layers, gain up to {gain:.0%}"
                self._begun = now, self.balancedness, moves, words
                self._carry_out(effects)
        self._slice += 1
        self._look()
        if node.busy:
            node.queue.at(now + self._rules.slice_s, self._count)

    def _report(self, now: float) -> None:
        """Report the rows of this slice to the core, as ranks would."""
        done = self._instance.done()
        tokens, busy_s = done.forward_tokens - self._fed, done.busy_s - self._busy_s
        self._fed, self._busy_s = done.forward_tokens, done.busy_s
        rank = min(self._pids)
        none: Rows = ((0,) * self._routing.experts,) * self._routing.layers
        if (rank, self._pids[rank]) != self._reporter:
            self._reporter, self._counted = (rank, self._pids[rank]), none
            self.core.on(rank, self._pids[rank], RowsCounted(rank, none), now)
        new = self._routing.rows(self._slice, tokens * self._chosen)
        self._counted = tuple(tuple(map(int.__add__, one, more)) for one, more in zip(self._counted, new, strict=True))
        watched = self._dies.slow or self.core.pace.measures()
        facts = self._dies.exchange(self._pids, self._size, busy_s, self.core.pace.share) if watched else {}
        for one, pid in self._pids.items():
            if one == rank or one in facts:
                counted = self._counted if one == rank else none
                self.core.on(one, pid, RowsCounted(one, counted, facts.get(one)), now)

    def _look(self) -> None:
        """Recompute balancedness and step times from the map in use and the load of this slice."""
        ledger = self.core.ledger
        assert ledger is not None
        ranks = len(ledger.map.slots)
        rows = [
            rank_loads(layer, weights, ranks)
            for layer, weights in zip(ledger.map.layers, self._routing.weights(self._slice), strict=True)
        ]
        self.balancedness = fmean(balancedness(row[rank] for rank in self._pids) for row in rows)
        imbalance = fmean(max(row) * self._size / sum(row) if any(row) else 1.0 for row in rows)
        self._dies.shares = [fmean(row[rank] / max(row) if any(row) else 1.0 for row in rows) for rank in range(ranks)]
        self._times.imbalance = float(f"{imbalance:.3g}")
        self._slowdown.set("dies", self._dies.slowest(self.core.pace.share))
        self._instance.change_pace()

    def _carry_out(self, effects: Sequence[MoveOrder]) -> None:
        queue, left = self._node.queue, deque(effects)
        while left:
            match left.popleft():
                case FetchExpert(move):
                    seconds = self._expert_bytes / self._rules.bytes_per_s
                    queue.at(queue.now + seconds, self._fetched, (self._epoch, MoveFetched(move)))
                case LoadExpert(move):
                    rank = move.to.rank
                    left += self.core.on(rank, self._pids[rank], MoveLoaded(move), queue.now)
                case SwitchMap(new):
                    queue.at(queue.now + max(CALL_S, self._instance.step_s), self._switch, (self._epoch, new.version))
                case MovesEnded(reason):
                    self._ended(reason)
        self._timer.set(self.core.next_wake())

    def _fetched(self, event: tuple[int, MoveFetched]) -> None:
        epoch, fetched = event
        if epoch == self._epoch and self._instance.alive:
            rank = fetched.move.to.rank
            self._carry_out(self.core.on(rank, self._pids[rank], fetched, self._node.queue.now))

    def _switch(self, event: tuple[int, int]) -> None:
        """Switch all ranks to the latest map at this step boundary."""
        epoch, version = event
        if epoch != self._epoch or not self._instance.alive:
            return
        now = self._node.queue.now
        effects = [
            one for rank, pid in self._pids.items() for one in self.core.on(rank, pid, MapSwitched(version), now)
        ]
        self._look()
        self._carry_out(effects)

    def _tick(self) -> None:
        if self._instance.alive:
            self._carry_out(self.core.tick(self._node.queue.now))

    def _ended(self, reason: str | None) -> None:
        at_s, before, moves, words = self._begun
        lasted = f"{words}; {self._node.queue.now - at_s:.1f} s"
        self._look()
        self._note(
            at_s, "undone" if reason else "rebalanced", moves, before, f"{lasted}{f': {reason}' if reason else ''}"
        )

    def _note(self, at_s: float, kind: str, moves: int, before: float, reason: str) -> None:
        name = self._instance.name
        self._records.append(ExpertRecord(at_s, name, kind, len(self._pids), moves, before, self.balancedness, reason))
        self._node.book.decided(self._node.queue.now, "experts", name, kind, reason)


# Dies of an expert-parallel group in virtual time: step time of each, and the resulting waits.

SequenceShare = Callable[[int], float]
"""Share of its normal number of sequences that a die has, 0..1."""


class GroupDies:
    """Dies of one group, by rank.

    Attributes:
        slow: slowdown factors of slow dies.
        shares: rows of each die over those of the busiest one, mean over layers.
    """

    def __init__(self) -> None:
        self.slow: dict[int, float] = {}
        self.shares: list[float] = []
        self._facts: dict[int, ExchangeFacts] = {}

    def keep(self, dies: Collection[int]) -> None:
        """Forget the counts of all dies but these."""
        self._facts = {die: facts for die, facts in self._facts.items() if die in dies}

    def slowest(self, sequences: SequenceShare) -> float:
        """Step time relative to a group without slow dies."""
        return max([1.0, *(self._need(die, sequences) for die in self.slow)])

    def exchange(
        self, dies: Collection[int], ranks: int, busy_s: float, sequences: SequenceShare
    ) -> dict[int, ExchangeFacts]:
        """Work and waits of each die since it joined; all dies wait for the slowest one.

        Args:
            dies: dies that compute. ranks: number of ranks of the group.
            busy_s: duration of the steps since the last call [s].
        """
        needs = {die: self._need(die, sequences) for die in dies}
        last = max(needs, key=needs.__getitem__)
        for die, need in needs.items():
            before = self._facts.get(die, ExchangeFacts((), (), (0.0,) * ranks, 0.0))
            waited = [*before.waited_s[:ranks], *[0.0] * (ranks - len(before.waited_s))]
            waited[last] += busy_s * (1 - need / needs[last]) if die != last else 0.0
            rows = int(self._share(die) * 1e6)
            seconds = busy_s * PRODUCTION_MOE_SHARE * self._share(die) * self.slow.get(die, 1.0) / needs[last]
            work = ExpertWork(before.work.seconds + seconds, before.work.rows + rows, 0)
            worked_s = before.worked_s + busy_s * need / needs[last]
            self._facts[die] = ExchangeFacts((), (), tuple(waited), worked_s, work)
        return self._facts

    def _need(self, die: int, sequences: SequenceShare) -> float:
        """Time that a die needs for a step, relative to a normal die with the most rows."""
        experts = PRODUCTION_MOE_SHARE * self._share(die)
        return self.slow.get(die, 1.0) * ((1 - PRODUCTION_MOE_SHARE) * sequences(die) + experts)

    def _share(self, die: int) -> float:
        return self.shares[die] if die < len(self.shares) else 1.0
