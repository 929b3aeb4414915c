"""When experts are placed anew, and which layers: only where the time saved is worth the move.

A plan is judged on load that it has not seen: made of every other time slice, it must gain on the rest. Gains shrink
by the time that moving takes of the time that they will last. A layer first tries other weights, which cost nothing.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from serving.group.core.load import LayerLoad, total
from serving.group.core.mover import ExpertMover, MovePhase, MoverEffect, MoverEvent
from serving.group.core.moves import MoveRound, Slots, align, move_rounds
from serving.group.core.placement import GroupShape, PlacementPolicy
from serving.group.core.slot_ledger import SlotLedger
from serving.group.core.split import slowest, split
from serving.values.expert_map import Placement
from serving.values.expert_moves import MovesEnded


@dataclass(frozen=True, slots=True)
class RebalanceSettings:
    """Rules of rebalancing.

    Args:
        min_gain: least share of a layer's expert time that must be saved, cost deducted.
        lasting_s: how long a placement is expected to fit; moving must take little of it [s].
        rest_s: pause after a rebalance, done or undone [s].
        looks: how often in a row a gain must be seen before experts move.
        deadline_s: a rebalance that takes longer is undone [s].
        expert_bytes: weights of one expert of one layer.
        bytes_per_s: rate of moving, all ranks together.
        speeds: of slow ranks, as `split` takes them; others have 1.
    """

    expert_bytes: int
    bytes_per_s: float
    min_gain: float = 0.05
    lasting_s: float = 600.0
    rest_s: float = 60.0
    looks: int = 2
    deadline_s: float = 120.0
    speeds: Mapping[int, float] = field(default_factory=dict)

    def speeds_of(self, ranks: int) -> list[float]:
        """[rank] Relative speeds."""
        return [self.speeds.get(rank, 1.0) for rank in range(ranks)]


@dataclass(frozen=True, slots=True)
class LayerPlan:
    """Change of one layer.

    Args:
        loads: [expert] tokens that it was planned for.
        rounds: of moves; one without moves = only weights change.
        saved: tokens less for the rank that is done last, on load that the plan has not seen.
        gain: the same as a share of what that rank has now, cost deducted.
    """

    layer: int
    loads: tuple[int, ...]
    rounds: tuple[MoveRound, ...]
    saved: float
    gain: float


@dataclass(frozen=True, slots=True)
class RebalancePlan:
    """Changes, hottest layer first.

    Args:
        stuck: layers that would gain but have no spare slot to open a circle of moves.
    """

    layers: tuple[LayerPlan, ...]
    stuck: tuple[int, ...] = ()


class RebalanceOutcome(StrEnum):
    """How a rebalance ended."""

    DONE = "done"
    UNDONE = "undone"


@dataclass(slots=True)
class Rebalancer:
    """Looks, decides and moves for one group. `counts` says how its rebalances have ended."""

    ledger: SlotLedger
    policy: PlacementPolicy
    nodes: tuple[int, ...]
    settings: RebalanceSettings
    counts: Counter[RebalanceOutcome] = field(default_factory=Counter)
    last_reason: str | None = None
    _mover: ExpertMover | None = None
    _seen: int = 0
    _rest_until: float = 0.0

    def look(self, loads: Sequence[LayerLoad], now: float) -> RebalancePlan | None:
        """Decide on the load of each layer. Called at the same interval, since `looks` counts calls.

        Returns: what to do now; None while nothing is worth it, or experts are being moved, or have just been.
        Effects: remembers that a gain was seen.
        """
        if self.ledger.busy or now < self._rest_until:
            return None
        plan = plan_rebalance(self.ledger, loads, self.policy, self.nodes, self.settings)
        self._seen = self._seen + 1 if plan.layers else 0
        return plan if plan.layers and self._seen >= self.settings.looks else None

    def start(self, plan: RebalancePlan, now: float) -> list[MoverEffect]:
        """Begin a plan, the caller's or an operator's.

        Raises: LedgerError if experts are being moved.
        """
        rounds = [one for layer in plan.layers for one in layer.rounds]
        self._seen = 0
        self._mover = ExpertMover(
            self.ledger,
            rounds,
            {one.layer: one.loads for one in plan.layers},
            expert_bytes=self.settings.expert_bytes,
            bytes_per_s=self.settings.bytes_per_s,
            deadline=now + self.settings.deadline_s,
            speeds=self.settings.speeds_of(len(self.ledger.map.slots)),
        )
        return self._counted(self._mover.start(now), now)

    def on(self, event: MoverEvent, now: float) -> list[MoverEffect]:
        """Go on with what was begun."""
        return self._counted(self._mover.on(event, now), now) if self._mover else []

    def next_wake(self) -> float | None:
        """When `on` needs a tick; None while it waits for events, or rests."""
        return self._mover.next_wake() if self._mover else None

    def abandon(self, reason: str, now: float) -> list[MoverEffect]:
        """Stop where it is, as when a rank was lost; whoever makes the next map takes over."""
        moving = self._mover is not None and self._mover.phase is not MovePhase.ENDED
        return self._counted(self._mover.abandon(reason), now) if moving and self._mover else []

    def _counted(self, effects: list[MoverEffect], now: float) -> list[MoverEffect]:
        for effect in effects:
            if isinstance(effect, MovesEnded):
                self.last_reason = effect.reason
                self.counts[RebalanceOutcome.UNDONE if effect.reason else RebalanceOutcome.DONE] += 1
                self._rest_until = now + self.settings.rest_s
        return effects


def plan_rebalance(
    ledger: SlotLedger,
    loads: Sequence[LayerLoad],
    policy: PlacementPolicy,
    nodes: tuple[int, ...],
    settings: RebalanceSettings,
) -> RebalancePlan:
    """Layers that gain enough, hottest first; each one's gain pays for the moves of those before it, too.

    A masked or borrowed expert for which there is room comes back first, whatever that costs.
    """
    found = [(layer, _best_change(ledger, layer, load, policy, nodes, settings)) for layer, load in enumerate(loads)]
    plans, seconds = [], 0.0
    for one in sorted((one for _, one in found if isinstance(one, LayerPlan)), key=lambda one: (-one.saved, one.layer)):
        own = _seconds(one.rounds, settings)
        gain = one.gain if one.gain == math.inf else one.gain * max(0.0, 1 - (seconds + own) / settings.lasting_s)
        if gain >= settings.min_gain:
            plans.append(LayerPlan(one.layer, one.loads, one.rounds, one.saved, gain))
            seconds += own
    return RebalancePlan(tuple(plans), tuple(layer for layer, one in found if one is False))


def place_now(
    ledger: SlotLedger,
    loads: Sequence[LayerLoad],
    policy: PlacementPolicy,
    nodes: tuple[int, ...],
) -> RebalancePlan:
    """Changes that bring every layer to where a policy wants it, whatever that gains."""
    plans, stuck = [], []
    for layer, load in enumerate(loads):
        experts = len(ledger.map.layers[layer].homes)
        rounds = move_rounds(layer, ledger.usable(layer), target_slots(ledger, layer, load, policy, nodes))
        if rounds:
            plans.append(LayerPlan(layer, total(load, experts), rounds, 0.0, 0.0))
        elif rounds is None:
            stuck.append(layer)
    return RebalancePlan(tuple(plans), tuple(stuck))


def target_slots(
    ledger: SlotLedger, layer: int, load: LayerLoad, policy: PlacementPolicy, nodes: tuple[int, ...]
) -> Slots:
    """Slots of a layer as a policy wants them, with as little change as possible.

    Experts that are masked or borrowed stay so while the group has too few slots for all.
    """
    current = ledger.usable(layer)
    ranks = range(len(ledger.map.slots))
    shape = GroupShape(tuple(sum(1 for at in current if at.rank == rank) for rank in ranks), nodes)
    one = ledger.map.layers[layer]
    members = list(range(len(one.homes)))
    if len(members) > len(current):
        away = one.masked | ledger.borrowed(layer).keys()
        members = [expert for expert in members if expert not in away]
    number = {expert: place for place, expert in enumerate(members)}
    held = ledger.contents(layer)
    now = tuple(tuple(number.get(expert) if expert is not None else None for expert in row) for row in held)
    part = tuple(tuple(row[expert] for expert in members) for row in load)
    placed = policy.place(part, len(members), shape, now)
    target: Placement = tuple(tuple(None if one is None else members[one] for one in row) for row in placed)
    kinds = [(shape.slots[rank], nodes[rank]) for rank in ranks]
    return align(current, target, [kinds.index(kind) for kind in kinds])


def _best_change(
    ledger: SlotLedger,
    layer: int,
    load: LayerLoad,
    policy: PlacementPolicy,
    nodes: tuple[int, ...],
    settings: RebalanceSettings,
) -> LayerPlan | bool:
    """The better of new weights and new places, by gain; True = neither gains, False = a circle without spare slot."""
    experts, ranks = len(ledger.map.layers[layer].homes), len(ledger.map.slots)
    loads = total(load, experts)
    fit, judge = (load[::2], total(load[1::2], experts)) if len(load) > 1 else (load, loads)
    speeds = settings.speeds_of(ranks)
    before = slowest(ledger.map.layers[layer], judge, speeds)
    current, target = ledger.usable(layer), target_slots(ledger, layer, load, policy, nodes)
    rounds = move_rounds(layer, current, target)
    away = ledger.map.layers[layer].masked | ledger.borrowed(layer).keys()
    if rounds and away & set(target.values()):
        return LayerPlan(layer, loads, rounds, math.inf, math.inf)  # there is room again: whatever it costs
    if not before or ledger.borrowed(layer):  # what is borrowed has no place that could be compared
        return True
    seen = total(fit, experts)
    weighted = slowest(split(ledger.contents(layer), seen, speeds), judge, speeds)
    trial = target_slots(ledger, layer, fit, policy, nodes)
    placed = slowest(split(_placement(trial, ledger), seen, speeds), judge, speeds)
    best = LayerPlan(layer, loads, (MoveRound(layer, ()),), before - weighted, 1 - weighted / before)
    least = max(best.gain, 0.0) + settings.min_gain
    if rounds is None:
        return best if best.gain >= settings.min_gain else 1 - placed / before < least
    if rounds and (1 - placed / before) - _seconds(rounds, settings) / settings.lasting_s >= least:
        return LayerPlan(layer, loads, rounds, before - placed, 1 - placed / before)
    return best if best.gain >= settings.min_gain else True


def _seconds(rounds: Sequence[MoveRound], settings: RebalanceSettings) -> float:
    """How long moves take at the byte rate [s]."""
    return sum(len(one.moves) for one in rounds) * settings.expert_bytes / settings.bytes_per_s


def _placement(slots: Slots, ledger: SlotLedger) -> Placement:
    """Slots as a placement of the group."""
    found: list[list[int | None]] = [[None] * count for count in ledger.map.slots]
    for at, expert in slots.items():
        found[at.rank][at.slot] = expert
    return tuple(map(tuple, found))
