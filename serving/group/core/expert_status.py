"""Status of experts from the facts that ranks announce, for `GET /experts` and `cloudmatrix experts`."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, Protocol

import msgspec

from serving.group.core.move_journal import OUTCOMES, RUNNING
from serving.group.core.placement import balancedness
from serving.group.core.straggler import StragglerMeasure
from serving.ids import ReplicaId
from serving.telemetry.group_metrics import GroupStats
from serving.values.expert_map import NO_SESSIONS, ExpertFacts, SessionTimes
from serving.values.group import LossKind, RankRole

MOST_BUSIEST = 10


class AnnouncedMember(Protocol):
    """An instance or a rank with its announced facts."""

    @property
    def replica(self) -> ReplicaId: ...
    @property
    def pool(self) -> str: ...
    @property
    def facts(self) -> dict[str, Any]: ...


def expert_status(ep: Mapping[str, int], members: Iterable[AnnouncedMember]) -> dict[str, Any]:
    """Groups of ranks with their load and placement. JSON-ready.

    Args:
        ep: ranks of a group by pool; 1 = one process computes all experts.
        members: instances and ranks; instances are left out.
    Returns: for each group, `exchange` has `worked_s` [rank], `waited_s` [rank][last peer to arrive] and `bytes`
        [from][to] of rows and results, `sessions` [rank] the time by part and its `rounds`; `layer_names` has the
        model's names of the layers, which commands count from 0;
        `rank_numbers` are those of the complete group, of which `expert_ranks` compute experts only.
    """
    groups: dict[str, list[AnnouncedMember]] = {}
    for member in members:
        if member.facts.get("experts") is not None:
            groups.setdefault(member.facts["group"], []).append(member)
    return {"ep": dict(ep), "groups": [_group(name, groups[name]) for name in sorted(groups)]}


def group_stats(status: Mapping[str, Any]) -> list[GroupStats]:
    """Groups for metrics. Includes zero counts, since `increase` misses a series that starts at one.

    Args:
        status: of `expert_status`.
    """
    return [
        GroupStats(
            group=one["group"], pool=one["pool"], told=(one["epoch"], one["told_s"]),
            balancedness=tuple(
                value if any(rows) else None
                for value, rows in zip(one["balancedness"], one["rank_layer_rows"], strict=True)
            ),
            moves=one["moved"], rebalances=dict.fromkeys(OUTCOMES, 0) | one["outcomes"],
            losses=dict.fromkeys((kind.value for kind in LossKind), 0) | one["losses"],
            not_grown=one["not_grown"],
            paces=one["paces"],
            measures=dict.fromkeys((each.value for each in StragglerMeasure), 0) | one["measures_taken"],
            spares=len(one["spares"]),
            masked=one["masked_count"],
            rebalancing=any(each["outcome"] == RUNNING for each in one["rebalances"]),
        )
        for one in status["groups"]
    ]  # fmt: skip


def _group(name: str, members: list[AnnouncedMember]) -> dict[str, Any]:
    ranks = sorted(((one, msgspec.convert(one.facts["experts"], ExpertFacts)) for one in members), key=_number)
    facts = [told for _, told in ranks]
    newest = max(facts, key=lambda one: (one.epoch, one.map_version))
    loads = [_to_ranks(facts, layer, newest.ranks) for layer in range(len(newest.to_ranks))]
    told = members[0].facts
    first, of_experts = int(told.get("first_expert") or 0), int(told.get("expert_ranks") or 0)
    numbers = list(range(newest.ranks))
    if of_experts:
        wanted = *range(int(told["ranks"]) - of_experts), *range(first, first + of_experts)
        numbers = sorted({*wanted, *newest.members})
    balance = [balancedness(load[rank] for rank in newest.members if rank >= first) for load in loads]
    whole = all(one.rows for one in facts)
    rows = [[sum(one.rows[layer][expert] for one in facts) for expert in range(newest.experts)]
            for layer in range(len(loads))] if whole else None  # fmt: skip
    return {
        "group": name,
        "pool": members[0].pool,
        "ranks_total": len(numbers),
        "rank_numbers": numbers,
        "expert_ranks": of_experts,
        "epoch": newest.epoch,
        "map_version": newest.map_version,
        "members": list(newest.members),
        "masked_count": newest.masked_count,
        "masked_rows": sum(one.masked_rows for one in facts),
        "experts": newest.experts,
        "layer_names": list(newest.layer_names or map(str, range(len(loads)))),
        "balancedness": balance,
        "rows": rows,
        "busiest": _busiest(facts, rows),
        "rank_layer_rows": loads,
        "rank_rows": [sum(load[rank] for load in loads) for rank in range(newest.ranks)],
        "exchange": _exchange(ranks, newest.ranks),
        "told_s": max((member.facts.get("told_s", 0.0) for member in members), default=0.0),
        "ranks": [_rank(member, told) for member, told in ranks],
        **_of_group(members),
    }


def _of_group(members: list[AnnouncedMember]) -> dict[str, Any]:
    """Latest moves and rebalances of the group's shell: the latest facts that any rank has received."""
    told = [one.facts["of_group"] for one in members if one.facts.get("of_group")]
    newest: dict[str, Any] = max(told, key=lambda one: one["shown_s"], default={})
    return {
        "moves": newest.get("moves", []),
        "rebalances": newest.get("rebalances", []),
        "outcomes": newest.get("outcomes", {}),
        "moved": newest.get("moved", 0),
        "losses": newest.get("losses", {}),
        "not_grown": newest.get("not_grown", 0),
        "paces": newest.get("paces", {}),
        "treated": newest.get("treated", {}),
        "measures": newest.get("measures", []),
        "measures_taken": newest.get("measures_taken", {}),
        "spares": newest.get("spares", []),
    }


def _to_ranks(facts: list[ExpertFacts], layer: int, ranks: int) -> list[int]:
    """Rows of a layer by the rank that computes them. During a resize, ranks report for different sizes."""
    return [sum(one.to_ranks[layer][rank] for one in facts if rank < one.ranks) for rank in range(ranks)]


def _number(of: tuple[AnnouncedMember, ExpertFacts]) -> int:
    return int(of[0].facts["rank"])


def _exchange(ranks: Sequence[tuple[AnnouncedMember, ExpertFacts]], count: int) -> dict[str, Any]:
    """Time and bytes between ranks, each since it joined; zeros for missing ranks."""
    worked, waited = [0.0] * count, [[0.0] * count for _ in range(count)]
    moved = [[0] * count for _ in range(count)]
    sessions = [_session(NO_SESSIONS)] * count
    for member, told in ranks:
        number, counted = int(member.facts["rank"]), told.exchange
        if counted is None or number >= count:  # it leaves
            continue
        worked[number], sessions[number] = counted.worked_s, _session(counted.sessions)
        by_peer = zip(counted.sent_bytes, counted.returned_bytes, counted.waited_s, strict=True)
        for peer, (sent, returned, late_s) in enumerate(islice(by_peer, count)):  # windows may have room for more ranks
            moved[number][peer] += sent
            moved[peer][number] += returned
            waited[number][peer] = late_s
    return {"worked_s": worked, "waited_s": waited, "bytes": moved, "sessions": sessions}


def _session(times: SessionTimes) -> dict[str, float]:
    return {**{f"{name.lower()}_s": seconds for name, seconds in times.parts.items()}, "rounds": times.rounds}


def _rank(member: AnnouncedMember, told: ExpertFacts) -> dict[str, Any]:
    return {
        "rank": member.facts["rank"],
        "role": member.facts.get("role", RankRole.BOTH.value),
        "replica": member.replica,
        "pid": member.facts.get("pid"),
        "npus": member.facts.get("npus", []),
        "state": member.facts.get("state"),
        "epoch": told.epoch,
        "map_version": told.map_version,
        "members": list(told.members),
        "rows_sent": sum(told.sent),
        "held": [list(layer) for layer in told.held],
        "held_count": told.held_count,
        "borrowed": [list(one) for one in told.borrowed],
        "borrowed_count": told.borrowed_count,
    }


def _busiest(facts: list[ExpertFacts], rows: list[list[int]] | None) -> list[dict[str, int]]:
    """The busiest experts; of a large model those that ranks named, whose sums are lower bounds."""
    found: Counter[tuple[int, int]] = Counter()
    if rows is not None:
        found.update({(layer, expert): n for layer, row in enumerate(rows) for expert, n in enumerate(row) if n})
    else:
        for one in facts:
            found.update({(each.layer, each.expert): each.rows for each in one.busiest})
    top = found.most_common(MOST_BUSIEST)
    return [{"layer": layer, "expert": expert, "rows": count} for (layer, expert), count in top]
