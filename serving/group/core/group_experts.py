"""State and decisions of a shell about the experts of its group: contents of slots, moves, operators' commands.

The ledger has the contents of the slots of all processes that the shell has regrouped. The offer of a new process
states what that process holds. A shell that takes over a group does not know the slots of serving ranks: it ends their
moves, they report what they hold, and all receive a map of those contents.

No expert moves until every member computes by the ledger's map: slots named by an older map are in use until then.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from serving.errors import PlacementError
from serving.group.core.expert_load import CountedLoad
from serving.group.core.group_map import regroup_map
from serving.group.core.group_pace import GroupPace, StragglerMode
from serving.group.core.move_journal import DONE, UNDONE, MoveJournal
from serving.group.core.mover import MoverTick
from serving.group.core.operator_plan import Refusal, move_plan, plan_shown, rebalance_plan, unknown_place
from serving.group.core.placement import StaticPlacement
from serving.group.core.placement_policies import NONE, policy_of
from serving.group.core.rebalance import RebalancePlan, Rebalancer, RebalanceSettings
from serving.group.core.slot_ledger import SlotLedger
from serving.values.expert_map import (
    ExpertMap,
    GateRule,
    Held,
    MapSwitched,
    MoveLoaded,
    MoveOrder,
    MovesEnded,
    MovesStopped,
    RankEvent,
    RowsCounted,
    SwitchMap,
)
from serving.values.group import MoveOneExpert, OrderAnswer, PlannedOrder, RankOffer, RebalanceExperts

LASTING_WINDOWS = 10.0
"""Expected lifetime of a placement, in windows of load."""
STUCK_S = 30.0
"""Time for a new map to come into use, and for moves to end after their deadline [s]; then the group is regrouped,
which ends any moves."""


@dataclass(frozen=True, slots=True)
class ExpertRules:
    """Rules of `[experts]`.

    Args:
        policy: `none`, or as `policy_of` names it.
        window_s: time over which load is counted [s]. slices: of that time.
        min_gain: see `RebalanceSettings`.
        bytes_per_s: rate of moves.
        straggler: strongest measure against a slow rank.
        masks: whether experts that were lost with a rank are masked until another has them, in place of being loaded
            into reserves; tokens then differ.
    """

    policy: str = "time_sliced"
    window_s: float = 10.0
    slices: int = 5
    min_gain: float = 0.05
    bytes_per_s: float = 100.0 * 2**20
    straggler: StragglerMode = "off"
    masks: bool = False

    @property
    def slice_s(self) -> float:
        """Time between two counts [s]."""
        return self.window_s / self.slices


class GroupExperts:
    """Experts of one group. Time is passed in.

    Args:
        epoch_s: see `MoveJournal`.
    """

    def __init__(self, rules: ExpertRules, epoch_s: float = 0.0) -> None:
        self.rules = rules
        self.epoch_s = epoch_s
        self.ledger: SlotLedger | None = None
        """None until the group is first regrouped or taken over."""
        self.journal = MoveJournal(epoch_s)
        self.pace = GroupPace(rules.straggler, rules.slice_s)
        self._members: dict[int, RankOffer] = {}
        self._said: dict[int, Held] = {}
        """By process: contents reported by ranks that are not in the ledger."""
        self._rebalancer: Rebalancer | None = None
        self._groups = 1
        """Of experts, as the model's router has them."""
        self.load: CountedLoad | None = None
        """None as `ledger`."""
        self._count_at = 0.0
        self.newest: ExpertMap | None = None
        """The latest map that was sent to all members; None as `ledger`."""
        self._switched: dict[int, set[int]] = {}
        """By version of a map: the ranks that use it."""
        self._confirmed = False
        self._since = 0.0
        """Time of the last regrouping or start of moves."""
        self.mask_refused = ""
        """Why the last regrouping after a loss masked no experts although the rules ask for it; empty otherwise."""

    # ---- contents of slots -------------------------------------------------------------------------------------------

    def is_known(self, rank: int, pid: int) -> bool:
        """Whether the contents of a serving rank's slots are known."""
        return pid in self._said or self._pid(rank) == pid

    def regroup(
        self, members: Sequence[RankOffer], ranks: int, version: int, now: float, *, lacks_rank: bool = False
    ) -> ExpertMap:
        """The map for changed members, which this shell considers in use from now on.

        It names no slot that is being loaded, and has no slots on ranks without experts. Moves must have been abandoned
        before.

        Args:
            members: the contents of serving ones are known.
            ranks: of the group, including missing ones.
            version: least version of the map.
            lacks_rank: a rank with experts was lost and is not replaced yet: with `ExpertRules.masks`, experts of which
                no member has a copy are masked, unless gates would have too few others.
        Raises: PlacementError if no member holds experts.
        """
        ledger = self.ledger
        holders = [one for one in members if one.role.has_experts]
        if not holders:
            raise PlacementError(f"none of {len(members)} members holds experts")
        known = [one.rank for one in holders if ledger is not None and self._pid(one.rank) == one.pid]
        newcomers = {one.rank: self._said.get(one.pid, one.held) for one in holders if one.rank not in known}
        contents = newcomers | {rank: ledger.held(rank) for rank in known if ledger is not None}
        experts = holders[0].experts
        if ledger is not None:
            version = max(version, ledger.next_version())
        ranks = max(ranks, 1 + max(one.rank for one in members))
        self.pace.follow({one.rank: one.pid for one in members})
        speeds = [self.pace.speeds().get(rank, 1.0) for rank in range(ranks)]
        loads = self.load.totals(now) if self.load else ()
        found = regroup_map(contents, ranks, experts, version, loads, speeds)
        self.mask_refused = ""
        if lacks_rank and self.rules.masks:
            borrowed = self._borrowed_at(known)
            masked = regroup_map(contents, ranks, experts, version, loads, speeds, borrowed, masks=True)
            self.mask_refused = _too_few(masked, holders[0].gate, experts)
            found = found if self.mask_refused else masked
        if ledger is None:
            self.ledger = ledger = SlotLedger(found, experts)
        ledger.regroup(found, newcomers)
        self.newest = found
        self._members = {one.rank: one for one in members}
        self._said.clear()
        self._confirmed, self._since = False, now
        self._follow_members(ledger)
        return found

    def admit(self, members: Sequence[RankOffer], version: int, now: float) -> list[MoveOrder]:
        """Follow attention ranks that join or leave in the present epoch: the map stays, and moves continue.

        Args:
            members: all, those with experts as before.
            version: of the map that new members have received; they also need `newest` if that is newer by now.
        Returns: effects of a map whose switch is complete without the ranks that have left.
        """
        before, self._members = self._members, {one.rank: one for one in members}
        joined = {rank for rank, one in self._members.items() if rank not in before or before[rank].pid != one.pid}
        self.pace.follow({one.rank: one.pid for one in members})
        if self.load is not None:
            self.load.keep({one.pid for one in members})
        self._switched.setdefault(version, set())
        for of, by in self._switched.items():
            by -= joined
            by |= joined if of <= version else set()
        return [each for of in sorted(self._switched) for each in self._all_switched(of, now)]

    def adopt(self, members: Sequence[RankOffer], ranks: int, version: int, now: float) -> list[MoveOrder]:
        """Effects that give a group that was taken over, and continues, a map known to this shell."""
        return [SwitchMap(self.regroup(members, ranks, version, now, lacks_rank=True))]

    def confirm(self, using: Mapping[int, int], now: float) -> str | None:
        """Record the map that each member uses. Call it periodically.

        Returns: why the group must be regrouped; None if it need not be.
        """
        ledger = self.ledger
        if ledger is None:
            return None
        self._confirmed |= all(using.get(rank, 0) >= ledger.map.version for rank in self._members)
        if not self._confirmed and now > self._since + STUCK_S:
            return f"expert map {ledger.map.version} has not come into use for {STUCK_S:g} s"
        rebalancer = self._rebalancer
        if ledger.busy and rebalancer and now > self._since + rebalancer.settings.deadline_s + STUCK_S:
            return "experts are being moved, and that does not end"
        return None

    # ---- load --------------------------------------------------------------------------------------------------------

    def count_due(self, now: float) -> bool:
        """Whether rows are to be counted now, which is once in each slice of the window.

        Effects: if so, the pace of ranks in the previous slice is judged.
        """
        if now < self._count_at or self.ledger is None:
            return False
        self._count_at = now + self.rules.slice_s
        changes = self.pace.look(now)
        self.journal.pace(self.pace.ratios(), self.pace.measures(), changes, now)
        self._take_speeds()
        return True

    def plan(self, now: float) -> RebalancePlan | None:
        """The rebalance that is due, if any. Slow with many experts: call it from any thread, one at a time."""
        if self._rebalancer is None or self.load is None or self.rules.policy == NONE or not self._confirmed:
            return None
        return self._rebalancer.look(self.load.loads(now), now)

    # ---- moves -------------------------------------------------------------------------------------------------------

    def begin(self, plan: RebalancePlan, map_version: int, reason: str, policy: str, now: float) -> list[MoveOrder]:
        """Start a planned rebalance.

        Args:
            map_version: of the map that it was planned on; if another map is in use now, nothing starts.
        """
        ledger, rebalancer = self.ledger, self._rebalancer
        if ledger is None or rebalancer is None or not self._may_begin(map_version):
            return []
        self._since = now
        gain = max((one.gain for one in plan.layers if one.gain != float("inf")), default=0.0)
        self.journal.begin(reason, policy, [each for one in plan.layers for each in one.rounds], gain, now)
        return self._noted(rebalancer.start(plan, now), now)

    def on(self, rank: int, pid: int, event: RankEvent, now: float) -> list[MoveOrder]:
        """Take an event of a rank's process."""
        match event:
            case MovesStopped(_, held):
                self._stopped(rank, pid, held)
            case _ if self._pid(rank) != pid or self._rebalancer is None or self.load is None:
                pass  # of a process that is not a member
            case RowsCounted(_, rows, exchange):
                self.load.count(rank, pid, rows, now)
                if exchange is not None:
                    self.pace.count(rank, exchange)
            case MapSwitched(version):
                self._switched.setdefault(version, set()).add(rank)
                return self._all_switched(version, now)
            case _:
                if isinstance(event, MoveLoaded):
                    self.journal.moved(event.move, now)
                return self._noted(self._rebalancer.on(event, now), now)
        return []

    def tick(self, now: float) -> list[MoveOrder]:
        """Continue moves at the time of `next_wake`."""
        busy = self._rebalancer is not None and self.ledger is not None and self.ledger.busy
        return self._noted(self._rebalancer.on(MoverTick(), now), now) if busy and self._rebalancer else []

    def next_wake(self) -> float | None:
        """When a tick is due; None while moves wait for an event."""
        return self._rebalancer.next_wake() if self._rebalancer is not None else None

    def abandon(self, reason: str, now: float) -> list[MoveOrder]:
        """End moves immediately, before a regrouping."""
        return self._noted(self._rebalancer.abandon(reason, now), now) if self._rebalancer is not None else []

    # ---- operators ---------------------------------------------------------------------------------------------------

    def plan_order(self, order: PlannedOrder, now: float) -> RebalancePlan | Refusal:
        """Plan an operator's command. May be slow: call it from any thread, one at a time."""
        ledger, rebalancer, load = self.ledger, self._rebalancer, self.load
        if ledger is None or rebalancer is None or load is None or not self._confirmed:
            return Refusal("the group is being formed; try again when all its ranks serve")
        if isinstance(order, MoveOneExpert) and (unknown := unknown_place(order, ledger)):
            return unknown
        if ledger.busy:
            return Refusal("experts are being moved; try again when the move has finished")
        loads = load.loads(now)
        if isinstance(order, RebalanceExperts):
            nodes, policy = (0,) * len(ledger.map.slots), self.rules.policy
            return rebalance_plan(order, ledger, loads, policy, self._groups, nodes, rebalancer.settings)
        return move_plan(order, ledger, loads)

    def begin_order(
        self, order: PlannedOrder, plan: RebalancePlan | Refusal, map_version: int, now: float
    ) -> tuple[OrderAnswer, list[MoveOrder]]:
        """Response to an operator, and effects that start what was planned."""
        if isinstance(plan, Refusal):
            return OrderAnswer(False, plan.reason, plan.unknown), []
        shown = plan_shown(plan)
        if not plan.layers:
            return OrderAnswer(True, "nothing to gain: no expert moves", detail=shown), []
        policy = (order.policy or self.rules.policy) if isinstance(order, RebalanceExperts) else ""
        if isinstance(order, RebalanceExperts) and order.dry_run:
            return OrderAnswer(True, "this would be done", detail=shown), []
        if not self._may_begin(map_version):
            return OrderAnswer(False, "the group has just changed; try again"), []
        effects = self.begin(plan, map_version, "operator", policy, now)
        return OrderAnswer(
            True, "experts are being moved; `cloudmatrix experts` shows the progress", detail=shown
        ), effects

    # ---- inside ------------------------------------------------------------------------------------------------------

    def _borrowed_at(self, ranks: Collection[int]) -> list[dict[int, int]]:
        """[layer] experts in the reserves of these ranks, with the rank."""
        ledger = self.ledger
        if ledger is None:
            return []
        layers = map(ledger.borrowed, range(len(ledger.map.layers)))
        return [{expert: at.rank for expert, at in one.items() if at.rank in ranks} for one in layers]

    def _pid(self, rank: int) -> int | None:
        known = self._members.get(rank)
        return known.pid if known is not None else None

    def _all_switched(self, version: int, now: float) -> list[MoveOrder]:
        """Continue once all members use a map."""
        if self._rebalancer is None or not self._switched.get(version, set()) >= self._members.keys():
            return []
        self._switched = {one: ranks for one, ranks in self._switched.items() if one > version}
        return self._noted(self._rebalancer.on(MapSwitched(version), now), now)

    def _may_begin(self, map_version: int) -> bool:
        ledger = self.ledger
        return ledger is not None and self._confirmed and not ledger.busy and ledger.map.version == map_version

    def _stopped(self, rank: int, pid: int, held: Held) -> None:
        if self.ledger is not None and self._pid(rank) == pid:
            self.ledger.stopped(rank, held)
        else:
            self._said[pid] = held

    def _follow_members(self, ledger: SlotLedger) -> None:
        """Forget former members; make the load window and the rebalancer once there is a ledger."""
        rules, members = self.rules, self._members.values()
        self._groups = max((one.gate.groups for one in members), default=1)
        self._switched.clear()
        if self.load is None:
            layers, experts = len(ledger.map.layers), len(ledger.map.layers[0].homes)
            self.load = CountedLoad(layers, experts, slice_s=rules.slice_s, slices=rules.slices)
        self.load.keep({one.pid for one in members})
        nodes = (0,) * len(ledger.map.slots)
        if self._rebalancer is not None:
            self._rebalancer.nodes = nodes
            self._take_speeds()
            return
        settings = RebalanceSettings(
            expert_bytes=max(one.expert_bytes for one in members),
            bytes_per_s=rules.bytes_per_s,
            min_gain=rules.min_gain,
            lasting_s=LASTING_WINDOWS * rules.window_s,
            rest_s=rules.window_s,
        )
        policy = policy_of(rules.policy, self._groups) or StaticPlacement()
        self._rebalancer = Rebalancer(ledger, policy, nodes, settings)

    def _take_speeds(self) -> None:
        one = self._rebalancer
        if one is not None:
            one.settings = replace(one.settings, speeds=self.pace.speeds())

    def _noted(self, effects: Iterable[MoveOrder], now: float) -> list[MoveOrder]:
        found = list(effects)
        for effect in found:
            if isinstance(effect, SwitchMap):
                self.newest = effect.map
            if isinstance(effect, MovesEnded) and self.ledger is not None:
                outcome = UNDONE if effect.reason else DONE
                self.journal.end(outcome, effect.reason, self.ledger.map.version, now)
        return found


def _too_few(masked: ExpertMap, gate: GateRule, experts: int) -> str:
    """Why gates cannot do without the masked experts of a map; empty if they can."""
    for layer, one in enumerate(masked.layers):
        if one.masked and not gate.may_mask(one.masked, experts):
            return f"layer {layer} would keep {experts - len(one.masked)} of {experts} experts, too few to choose from"
    return ""
