"""Plans for operators' commands, and refusals."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from serving.group.core.expert_load import CountedLoad, LayerLoad, total
from serving.group.core.placement_policies import NONE, policy_of
from serving.group.core.rebalance import LayerPlan, RebalancePlan, RebalanceSettings, place_now, plan_rebalance
from serving.group.core.slot_ledger import MoveRound, SlotLedger
from serving.values.expert_map import ExpertMove, ExpertSlot
from serving.values.group import MoveOneExpert, OrderAnswer, RebalanceExperts


@dataclass(frozen=True, slots=True)
class Refusal:
    """Refusal of a command.

    Args:
        unknown: whether the policy, layer, expert or rank does not exist.
    """

    reason: str
    unknown: bool = False


def rebalance_plan(
    order: RebalanceExperts,
    ledger: SlotLedger,
    loads: Sequence[LayerLoad],
    configured: str,
    groups: int,
    nodes: tuple[int, ...],
    settings: RebalanceSettings,
) -> RebalancePlan | Refusal:
    """Plan of a rebalance: of a named policy at any gain, of the configured policy only with a gain."""
    name = order.policy or configured
    policy = policy_of(name, groups)
    if policy is None:
        if name == NONE:
            return Refusal('[experts] policy is "none": name one with --policy')
        return Refusal(f"there is no policy '{name}'", unknown=True)
    if order.policy is not None:
        plan = place_now(ledger, loads, policy, nodes)
    else:
        plan = plan_rebalance(ledger, loads, policy, nodes, replace(settings, min_gain=1e-9))
    if plan.layers or not plan.stuck:
        return plan
    return Refusal(
        f"layers {', '.join(map(str, plan.stuck))} have no slot to spare: each holds an expert's only home; give ranks"
        " more with [experts] redundant"
    )


def unknown_place(order: MoveOneExpert, ledger: SlotLedger) -> Refusal | None:
    """Refusal of a command that names an unknown layer, expert or rank; None if all are known."""
    layers = ledger.map.layers
    if not 0 <= order.layer < len(layers):
        return Refusal(f"there are layers 0 to {len(layers) - 1} with experts", unknown=True)
    experts = len(layers[order.layer].homes)
    if not 0 <= order.expert < experts:
        return Refusal(f"a layer has experts 0 to {experts - 1}", unknown=True)
    if all(at.rank != order.rank for at in ledger.usable(order.layer)):
        return Refusal(f"rank {order.rank} holds no experts in this group", unknown=True)
    return None


def move_plan(order: MoveOneExpert, ledger: SlotLedger, loads: Sequence[LayerLoad]) -> RebalancePlan | Refusal:
    """Plan of one expert's move: into an empty slot of the rank, else over a copy whose expert has another home.

    The source slot keeps the expert, which then shares its tokens between both.
    """
    layer, expert, rank = order.layer, order.expert, order.rank
    if unknown := unknown_place(order, ledger):
        return unknown
    slots = ledger.usable(layer)
    own = {at: held for at, held in slots.items() if at.rank == rank}
    experts = len(ledger.map.layers[layer].homes)
    if expert in own.values():
        return Refusal(f"rank {rank} holds expert {expert} of layer {layer} already")
    tokens, copies = total(loads[layer], experts), Counter(slots.values())
    able = [at for at, held in own.items() if held is None or copies[held] > 1]
    if not able:
        return Refusal(
            f"rank {rank} has no slot to spare in layer {layer}: each holds an expert's only home; give ranks more with"
            " [experts] redundant"
        )

    def cost(at: ExpertSlot) -> tuple[bool, float, ExpertSlot]:
        held = own[at]
        return held is not None, 0.0 if held is None else tokens[held] / copies[held], at

    source = min((at for at, held in slots.items() if held == expert), default=None)
    moved = ExpertMove(layer, expert, min(able, key=cost), source)
    return RebalancePlan((LayerPlan(layer, tokens, (MoveRound(layer, (moved,)),), 0.0, 0.0),))


def plan_shown(plan: RebalancePlan) -> dict[str, Any]:
    """A plan, JSON-ready."""
    layers = [
        {
            "layer": one.layer,
            "gain": None if one.gain in (0.0, float("inf")) else round(one.gain, 4),
            "moves": [
                {
                    "expert": move.expert,
                    "from": move.source.rank if move.source is not None else None,
                    "to": move.to.rank,
                    "slot": move.to.slot,
                }
                for each in one.rounds
                for move in each.moves
            ],
        }
        for one in plan.layers
    ]
    return {"layers": layers, "moves": sum(len(one["moves"]) for one in layers), "stuck": list(plan.stuck)}  # type: ignore[arg-type,misc]


def load_answer(load: CountedLoad | None, after: int | None, now: float, epoch_s: float) -> OrderAnswer:
    """Response to `ReadLoad`: the rows of slices that are over.

    Args:
        load: None before the group has formed.
        after: as in `ReadLoad`.
        epoch_s: Unix time at which `now` is 0 [s].
    """
    if load is None:
        return OrderAnswer(False, "the group is being formed; try again when all its ranks serve")
    window = load.window
    experts = window.experts
    slices = (
        [
            {
                "at_s": round(number * window.slice_s + epoch_s, 3),
                "rank": rank,
                "rows": [flat[first : first + experts] for first in range(0, len(flat), experts)],
            }
            for number, rank, flat in window.after(after, now)
            if any(flat)
        ]
        if after is not None
        else []
    )
    last = int(now // window.slice_s) - 1
    shown = {"layers": window.layers, "experts": experts, "slice_s": window.slice_s, "last": last, "slices": slices}
    return OrderAnswer(True, f"{len(slices)} slices of ranks", detail=shown)
