"""Expert map of a group: the slots of each layer's experts, and the share of an expert's tokens for each of its slots.

Shares are whole sixteenths, so that a table of 16 rows spreads an expert's tokens exactly by weight: the token at
position p of rank r reads row r + p (mod 16). Maps are values. Ranks of a group may use two versions for a while.
"""

from collections.abc import Sequence

import msgspec

from serving.errors import LedgerError

PARTS = 16
"""Parts of an expert's tokens, and rows of a rotation table."""

Placement = tuple[tuple[int | None, ...], ...]
"""Experts of one layer, [rank][slot]; None = the slot is empty. A rank that has left the group has no slots."""


class ExpertSlot(msgspec.Struct, frozen=True, order=True):
    """One slot of a rank, in one layer."""

    rank: int
    slot: int


class ExpertHome(msgspec.Struct, frozen=True):
    """Slot that holds an expert.

    Args:
        weight: sixteenths of the expert's tokens sent to it; 0 = it holds the expert, but gets no tokens.
    """

    at: ExpertSlot
    weight: int


class LayerMap(msgspec.Struct, frozen=True):
    """Homes of one layer's experts.

    Args:
        homes: [expert] homes, by rank; empty for a masked expert.
        masked: experts that the gate must not choose, since no rank holds them.
    """

    homes: tuple[tuple[ExpertHome, ...], ...]
    masked: frozenset[int] = frozenset()


class ExpertMap(msgspec.Struct, frozen=True):
    """Homes of all experts.

    Args:
        version: increases with every change.
        slots: [rank] slots per layer; 0 = no longer in the group.
        layers: [layer], layers with routed experts only.
    """

    version: int
    slots: tuple[int, ...]
    layers: tuple[LayerMap, ...]

    def check(self) -> None:
        """Check that every expert has a home or is masked, that no slot is used twice, and that weights add up.

        Raises: LedgerError with layer and expert.
        """
        for layer, one in enumerate(self.layers):
            used: set[ExpertSlot] = set()
            for expert, homes in enumerate(one.homes):
                wrong = _wrong(homes, expert in one.masked, self.slots, used)
                if wrong:
                    raise LedgerError(f"expert map {self.version}, layer {layer}, expert {expert}: {wrong}")

    def placement(self, layer: int) -> Placement:
        """Contents of a layer's slots."""
        found: list[list[int | None]] = [[None] * slots for slots in self.slots]
        for expert, homes in enumerate(self.layers[layer].homes):
            for home in homes:
                found[home.at.rank][home.at.slot] = expert
        return tuple(map(tuple, found))

    def rotation(self, layer: int, rank: int) -> tuple[tuple[ExpertSlot | None, ...], ...]:
        """Slots that a rank sends its tokens to, [position mod 16][expert]; None for a masked expert.

        The rotation starts at the rank's number, so that ranks with few tokens do not all choose the first home.
        """
        columns = [_column(homes) for homes in self.layers[layer].homes]
        return tuple(
            tuple(column[(rank + position) % PARTS] if column else None for column in columns)
            for position in range(PARTS)
        )


def _wrong(homes: Sequence[ExpertHome], masked: bool, slots: Sequence[int], used: set[ExpertSlot]) -> str | None:
    """The first error in an expert's homes; None if they are valid. Effects: adds them to `used`."""
    if masked or not homes:
        return None if masked and not homes else "masked, but has a home" if masked else "has no home and is not masked"
    for home in homes:
        at = home.at
        if not (0 <= at.rank < len(slots) and 0 <= at.slot < slots[at.rank]):
            return f"{at} is not a slot of the group"
        if at in used:
            return f"{at} is used twice"
        if home.weight < 0:
            return f"{at} has a negative weight"
        used.add(at)
    if len({home.at.rank for home in homes}) < len(homes):
        return "has two homes on one rank"
    total = sum(home.weight for home in homes)
    return None if total == PARTS else f"weights add up to {total}, not {PARTS}"


def _column(homes: Sequence[ExpertHome]) -> list[ExpertSlot]:
    """Homes in rotation, each as often as its weight and spaced as evenly as possible."""
    if not homes:
        return []
    due, turns = [0] * len(homes), []
    for _ in range(PARTS):
        due = [one + home.weight for one, home in zip(due, homes, strict=True)]
        chosen = due.index(max(due))
        due[chosen] -= PARTS
        turns.append(homes[chosen].at)
    return turns
