"""Decide when to rebalance experts, and in which layers: only where the time saved is worth the move.

A plan is made from every other time slice and must gain on the remaining slices. Gains are reduced by the share of
their lifetime that moving takes. A layer first tries other weights, which are free.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from serving.group.core.expert_load import LayerLoad, total
from serving.group.core.mover import ExpertMover, MovePhase, MoverEffect, MoverEvent
from serving.group.core.placement import GroupShape, PlacementPolicy, slowest, split
from serving.group.core.slot_ledger import MoveRound, SlotLedger, Slots, align, move_rounds
from serving.values.expert_map import MovesEnded, Placement


@dataclass(frozen=True, slots=True)
class RebalanceSettings:
    """Rules of rebalancing.

    Args:
        min_gain: least share of a layer's expert time that must be saved, cost deducted.
        lasting_s: expected lifetime of a placement [s].
        rest_s: pause after a rebalance, done or undone [s].
        looks: consecutive checks with a gain before experts move.
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
        rounds: of moves; a round without moves changes only weights.
        saved: reduction of the slowest rank's tokens, on load that the plan was not made from.
        gain: `saved` as a share of that rank's present tokens, after cost.
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
        stuck: layers that would gain but have no spare slot to break a cycle of moves.
    """

    layers: tuple[LayerPlan, ...]
    stuck: tuple[int, ...] = ()


class RebalanceOutcome(StrEnum):
    """Result of a rebalance."""

    DONE = "done"
    UNDONE = "undone"


@dataclass(slots=True)
class Rebalancer:
    """Rebalances of one group; `counts` has their outcomes."""

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
        """Plan for the load of each layer. Call it at a constant interval, since `looks` counts calls.

        Returns: the plan to start; None while no plan is worth it, moves are running, or the last ones ended recently.
        Effects: counts checks with a gain.
        """
        if self.ledger.busy or now < self._rest_until:
            return None
        plan = plan_rebalance(self.ledger, loads, self.policy, self.nodes, self.settings)
        self._seen = self._seen + 1 if plan.layers else 0
        return plan if plan.layers and self._seen >= self.settings.looks else None

    def start(self, plan: RebalancePlan, now: float) -> list[MoverEffect]:
        """Start a plan of `look` or of an operator.

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
        """Continue running moves."""
        return self._counted(self._mover.on(event, now), now) if self._mover else []

    def next_wake(self) -> float | None:
        """When `on` needs a tick; None while moves wait for events, or none run."""
        return self._mover.next_wake() if self._mover else None

    def abandon(self, reason: str, now: float) -> list[MoverEffect]:
        """Stop running moves, as after the loss of a rank; the next regrouping makes a new map."""
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
    """Layers that gain enough, hottest first; the gain of each also pays for the moves of the layers before it.

    A masked or borrowed expert for which there is room is placed first, at any cost.
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
    """Changes that bring every layer to a policy's placement, whatever the gain."""
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
    """Contents of a layer's slots under a policy, with the fewest changes.

    Masked and borrowed experts remain so while the group has too few slots for all.
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
    """The better of new weights and new places, by gain; True = no gain, False = a cycle without a spare slot."""
    experts, ranks = len(ledger.map.layers[layer].homes), len(ledger.map.slots)
    loads = total(load, experts)
    fit, judge = (load[::2], total(load[1::2], experts)) if len(load) > 1 else (load, loads)
    speeds = settings.speeds_of(ranks)
    before = slowest(ledger.map.layers[layer], judge, speeds)
    current, target = ledger.usable(layer), target_slots(ledger, layer, load, policy, nodes)
    rounds = move_rounds(layer, current, target)
    away = ledger.map.layers[layer].masked | ledger.borrowed(layer).keys()
    if rounds and away & set(target.values()):
        return LayerPlan(layer, loads, rounds, math.inf, math.inf)  # there is room again: at any cost
    if not before or ledger.borrowed(layer):  # a borrowed expert has no slot to compare with
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
    """Duration of moves at the byte rate [s]."""
    return sum(len(one.moves) for one in rounds) * settings.expert_bytes / settings.bytes_per_s


def _placement(slots: Slots, ledger: SlotLedger) -> Placement:
    """Slots as a placement of the group."""
    found: list[list[int | None]] = [[None] * count for count in ledger.map.slots]
    for at, expert in slots.items():
        found[at.rank][at.slot] = expert
    return tuple(map(tuple, found))
