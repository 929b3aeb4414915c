"""New homes for experts whose ranks go: an empty slot, else one whose expert has another home."""

from collections import Counter
from collections.abc import Sequence

from serving.experts.core.moves import Slots
from serving.values.expert_map import ExpertSlot


def rehome(homeless: Sequence[int], slots: Slots, loads: Sequence[float]) -> dict[ExpertSlot, int]:
    """Slots for experts, the busiest expert first, on the rank with the least to do.

    Args:
        homeless: experts that `slots` do not hold.
        slots: of the ranks that stay, with what they hold.
        loads: [expert] tokens.
    Returns: fewer than asked for if slots run out. No expert of `slots` loses its last home.
    """
    now, found = dict(slots), dict[ExpertSlot, int]()
    for expert in sorted(homeless, key=lambda one: (-loads[one], one)):
        copies = Counter(held for held in now.values() if held is not None)
        able = [at for at, held in now.items() if held is None or copies[held] > 1]
        if not able:
            break
        busy = _rank_loads(now, copies, loads)
        at = min(able, key=lambda one: (now[one] is not None, _given_up(now[one], copies, loads), busy[one.rank], one))
        now[at] = found[at] = expert
    return found


def _given_up(held: int | None, copies: Counter[int], loads: Sequence[float]) -> float:
    """Tokens that the other copies of a slot's expert must take over."""
    return 0.0 if held is None else loads[held] / copies[held]


def _rank_loads(slots: Slots, copies: Counter[int], loads: Sequence[float]) -> Counter[int]:
    """Tokens of each rank if copies share evenly."""
    busy = Counter[int]()
    for at, held in slots.items():
        busy[at.rank] += 0 if held is None else loads[held] / copies[held]  # type: ignore[assignment]
    return busy
