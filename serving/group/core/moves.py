"""Fewest moves that turn one placement of a layer into another while tokens flow, in rounds.

A round overwrites several slots at once. No expert loses its last home: a slot whose expert has no other home waits
until it has one, and a cycle of such slots is broken by way of a spare slot.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from serving.values.expert_map import ExpertSlot, Placement
from serving.values.expert_moves import ExpertMove

Slots = dict[ExpertSlot, int | None]


@dataclass(frozen=True, slots=True)
class MoveRound:
    """Concurrent moves into different slots of one layer; without moves only the weights change."""

    layer: int
    moves: tuple[ExpertMove, ...]


def slots_of(placement: Placement) -> Slots:
    """A placement by slot."""
    return {ExpertSlot(rank, slot): expert for rank, held in enumerate(placement) for slot, expert in enumerate(held)}


def align(current: Slots, target: Placement, kinds: Sequence[int]) -> Slots:
    """The target by slot, arranged so that as many experts as possible stay in place.

    Ranks of one kind may swap their parts; slots of a rank hold experts in any order. Slots that the target does not
    need keep their experts.

    Args:
        current: slots that may be used, with what they hold.
        kinds: [rank]; equal where ranks have the same number of usable slots and the same node.
    """
    held: list[set[int]] = [set() for _ in target]
    for at, expert in current.items():
        if expert is not None:
            held[at.rank].add(expert)
    parts = [{expert for expert in part if expert is not None} for part in target]
    chosen = _parts_of(held, parts, kinds)
    found = dict(current)
    for rank in range(len(target)):
        wanted = parts[chosen[rank]]
        free = sorted(
            (at for at, expert in current.items() if at.rank == rank and expert not in wanted),
            key=lambda at: (current[at] is not None, at),
        )
        for at, expert in zip(free, sorted(wanted - held[rank]), strict=False):
            found[at] = expert
    return found


def _parts_of(held: Sequence[set[int]], parts: Sequence[set[int]], kinds: Sequence[int]) -> dict[int, int]:
    """Part of each rank: pairs with the most experts in common come first, then a rank's own part, then the first."""
    takers: dict[int, list[int]] = {}
    for part, wanted in enumerate(parts):
        for expert in wanted:
            takers.setdefault(expert, []).append(part)
    common = Counter((rank, part) for rank, own in enumerate(held) for one in own for part in takers.get(one, ()))
    pairs = sorted((-n, rank != part, rank, part) for (rank, part), n in common.items() if kinds[rank] == kinds[part])
    chosen, given = dict[int, int](), set[int]()
    for rank, part in (*((pair[2], pair[3]) for pair in pairs), *((rank, rank) for rank in range(len(parts)))):
        if rank not in chosen and part not in given:
            chosen[rank] = part
            given.add(part)
    for rank in range(len(parts)):
        if rank not in chosen:
            chosen[rank] = next(one for one in range(len(parts)) if one not in given and kinds[one] == kinds[rank])
            given.add(chosen[rank])
    return chosen


def move_rounds(layer: int, current: Slots, target: Slots) -> tuple[MoveRound, ...] | None:
    """Rounds of moves from one placement to the other.

    Returns: None if there is a cycle without a usable spare slot: the layer cannot change while it serves.
    """
    now, rounds, seen = dict(current), list[MoveRound](), set[tuple[ExpertSlot | None, tuple[int | None, ...]]]()
    freed: ExpertSlot | None = None
    while pending := [at for at in sorted(target) if target[at] is not None and target[at] != now[at]]:
        state = (freed, tuple(now[at] for at in sorted(now)))
        if state in seen:
            return None  # what was lent as a spare slot is wanted back, and round it goes
        seen.add(state)
        # A slot whose expert was lent another home goes first: else that home may be taken back before it has served.
        chosen = _overwritable(now, sorted(pending, key=lambda at: (at != freed, at)))
        wanted = {at: target[at] for at in chosen}
        if not chosen:
            spare = _spare(now, pending)
            if spare is None:
                return None
            wanted, freed = {spare: now[pending[0]]}, pending[0]
        rounds.append(MoveRound(layer, _moves(layer, now, wanted)))
        now.update(wanted)
    return tuple(rounds)


def _overwritable(now: Slots, pending: Sequence[ExpertSlot]) -> list[ExpertSlot]:
    """Pending slots that may be overwritten together: every expert keeps a home."""
    homes = Counter(now.values())
    chosen = []
    for at in pending:
        expert = now[at]
        if expert is None or homes[expert] > 1:
            homes[expert] -= 1
            chosen.append(at)
    return chosen


def _spare(now: Slots, pending: Sequence[ExpertSlot]) -> ExpertSlot | None:
    """A slot that is empty or holds a surplus copy, preferably on the rank of the expert to move."""
    homes = Counter(now.values())
    spare = [at for at, held in now.items() if held is None or homes[held] > 1]
    return min(spare, key=lambda at: (now[at] is not None, at.rank != pending[0].rank, at), default=None)


def _moves(layer: int, now: Slots, wanted: Slots) -> tuple[ExpertMove, ...]:
    """A move for each slot, from the rank itself if it can, else from the rank that sends least in this round."""
    sends, found = Counter[int](), []
    for at, expert in wanted.items():
        assert expert is not None
        sources = [source for source, held in now.items() if held == expert]
        source = min(sources, key=lambda one: (one.rank != at.rank, sends[one.rank], one), default=None)
        if source is not None and source.rank != at.rank:
            sends[source.rank] += 1
        found.append(ExpertMove(layer, expert, at, source))
    return tuple(found)
