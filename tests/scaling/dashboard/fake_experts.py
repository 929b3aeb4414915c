"""Groups of ranks for the fake system, with facts like those of real ranks."""

import random
import time
from dataclasses import dataclass
from typing import Any

import msgspec

from serving.errors import ScaleError
from serving.group.core.expert_status import expert_status
from serving.ids import ReplicaId
from serving.scaling.dashboard.answers import JsonObject
from serving.values.expert_map import ExchangeFacts, ExpertFacts, ExpertRows
from serving.values.scaling_operations import GroupAnswer

GROUP = "decode#k3jx9a"
_ENTRY: JsonObject = {"policy": "global", "layers": [0, 2], "moves": 3, "gain": 0.07, "problem": None}
REBALANCES = [
    _ENTRY | {"at_s": 1.7e9 + 60, "reason": "operator", "outcome": "undone", "seconds": 9.0, "problem": "r1 is late"},
    _ENTRY | {"at_s": 1.7e9, "reason": "load", "outcome": "done", "seconds": 1.25},
]
"""As the journal of a group's shell shows them."""
EVENTS: list[JsonObject] = [
    {"id": 2, "at": 1.7e9 + 30, "kind": "replaced", "replica": "k3jx9a.r1", "text": "serves again, 3 s after the loss"},
    {"id": 1, "at": 1.7e9 + 27, "kind": "died", "replica": "k3jx9a.r1", "text": "its process ended"},
]


@dataclass(frozen=True)
class Shape:
    """Sizes of a group; `table` = the model is small enough for a table of all experts."""

    ranks: int
    layers: int
    experts: int
    table: bool = True


SHAPES = {
    "small": Shape(2, 3, 8),
    "lost": Shape(2, 3, 8),
    "wide": Shape(4, 16, 64),
    "large": Shape(32, 58, 256, table=False),
}


NAMES = {3: ("1", "2", "draft"), 16: (*map(str, range(1, 16)), "draft")}
"""Of the layers in the model, by their count; of the large group they are not known."""


@dataclass(frozen=True)
class FakeMember:
    """A rank that has registered."""

    replica: ReplicaId
    pool: str
    facts: dict[str, Any]


def fake_experts(wish: str) -> JsonObject:
    """Response to `ReadExperts`.

    Args:
        wish: a name of SHAPES; `starting` = a group is configured and none exists; else there is no group.
    """
    members = _ranks(wish) if wish in SHAPES else []
    ep = SHAPES[wish].ranks if wish in SHAPES else 2 if wish == "starting" else 1
    status = expert_status({"prefill": 1, "decode": ep}, members)
    for group in status["groups"]:
        group["events"] = EVENTS
    return {"now": time.time(), "seen_s": 0.3, "model": "storyteller", "mode": "disaggregated", **status}


def ordered(wish: str, group: str, message: str) -> GroupAnswer:
    """Response to an operation on a group; one that has lost a rank refuses.

    Raises: ScaleError.
    """
    if group != GROUP:
        raise ScaleError(f"there is no group {group!r} that takes orders", kind="unknown_group")
    if wish == "lost":
        raise ScaleError("rank 1 is missing", kind="not_now")
    return GroupAnswer(group, message)


def _ranks(wish: str) -> list[FakeMember]:
    shape, lost = SHAPES[wish], {1} if wish == "lost" else set()
    there = tuple(rank for rank in range(shape.ranks) if rank not in lost)
    return [_rank(shape, rank, there) for rank in there]


def _rank(shape: Shape, rank: int, there: tuple[int, ...]) -> FakeMember:
    rng, share = random.Random(rank), shape.experts // shape.ranks
    rows = [[rng.randrange(40) ** 2 for _ in range(shape.experts)] for _ in range(shape.layers)]
    own = (*range(rank * share, (rank + 1) * share), (rank + 1) * share % shape.experts)  # and its neighbour's
    lost = [one for one in range(shape.ranks) if one not in there]
    borrowed = [(layer, expert) for layer in range(shape.layers) for one in lost for expert in _share(shape, one)]
    borrowed = [(layer, expert) for layer, expert in borrowed if expert not in own]
    homes = [expert // share if expert // share in there else there[0] for expert in range(shape.experts)]
    to_ranks = [[0] * shape.ranks for _ in rows]
    for layer, row in enumerate(rows):
        for expert, count in enumerate(row):
            to_ranks[layer][homes[expert]] += count
    peers = [one if one != rank and one in there else None for one in range(shape.ranks)]
    facts = ExpertFacts(
        epoch=3, map_version=7, members=there, layer_names=NAMES.get(shape.layers, ()),
        ranks=shape.ranks, experts=shape.experts,
        to_ranks=tuple(map(tuple, to_ranks)), rows=tuple(map(tuple, rows)) if shape.table else (),
        busiest=() if shape.table else tuple(ExpertRows(layer, 5, 90 - layer) for layer in range(9)),
        held=(own,) * shape.layers, held_count=len(own) * shape.layers,
        borrowed=tuple(borrowed), borrowed_count=len(borrowed),
        exchange=ExchangeFacts(
            tuple(0 if one is None else (1 + one) << 22 for one in peers),
            tuple(0 if one is None else (2 + rank) << 20 for one in peers),
            tuple(0.0 if one is None else 2.5 + one for one in peers),
            30.0 + rank,
        ),
    )  # fmt: skip
    told = {
        "group": GROUP, "rank": rank, "ranks": shape.ranks, "pid": 5000 + rank, "state": "serving", "told_s": 9.0,
        "npus": [f"n{rank // 8}.npu{rank % 8}"],
        "of_group": {"shown_s": 1.0, "moves": [], "rebalances": REBALANCES, "outcomes": {"done": 1, "undone": 1},
                     "paces": {"0": 0.98, "1": 1.43}, "treated": {"1": "fewer_tokens"}},
    }  # fmt: skip
    name = ReplicaId(f"{GROUP}.r{rank}")
    return FakeMember(name, "decode", {**told, "experts": msgspec.to_builtins(facts)})


def _share(shape: Shape, rank: int) -> range:
    share = shape.experts // shape.ranks
    return range(rank * share, (rank + 1) * share)
