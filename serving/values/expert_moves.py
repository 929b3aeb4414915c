"""Messages about expert moves: a shell's requests to its ranks, and their responses."""

import msgspec

from serving.values.expert_facts import ExchangeFacts
from serving.values.expert_map import ExpertMap, ExpertSlot

Held = tuple[tuple[int | None, ...], ...]
"""Experts in a rank's own slots, [layer][slot]; None = the slot is empty, or not to be relied on."""


class ExpertMove(msgspec.Struct, frozen=True):
    """Move of an expert's weights to another slot.

    Args:
        source: a slot that holds them; None = no rank has them, so they are read from the pool or the checkpoint.
    """

    layer: int
    expert: int
    to: ExpertSlot
    source: ExpertSlot | None


class FetchExpert(msgspec.Struct, frozen=True):
    """Effect: bring an expert's weights to the staging memory of the target's rank."""

    move: ExpertMove


class SwitchMap(msgspec.Struct, frozen=True):
    """Effect: let each rank use this map from its next step on."""

    map: ExpertMap


class LoadExpert(msgspec.Struct, frozen=True):
    """Effect: write staged weights into the slot."""

    move: ExpertMove


class MovesEnded(msgspec.Struct, frozen=True):
    """Effect: no move is in progress any more; staged weights that were not loaded may be dropped.

    Args:
        reason: None if all rounds were completed, else why the others were not.
    """

    reason: str | None


class MoveFetched(msgspec.Struct, frozen=True):
    """Event: the weights are staged."""

    move: ExpertMove


class MoveLoaded(msgspec.Struct, frozen=True):
    """Event: the slot holds the expert."""

    move: ExpertMove


class MoveFailed(msgspec.Struct, frozen=True):
    """Event: a fetch or a load has failed for good."""

    move: ExpertMove
    reason: str


class MapSwitched(msgspec.Struct, frozen=True):
    """Event: the map of this version is in use, at one rank or, as an event of the mover, at all ranks."""

    version: int


class MovesStopped(msgspec.Struct, frozen=True):
    """Event: a rank acknowledges the end of moves. It loads no weights any more, and its slots hold these."""

    rank: int
    held: Held


class CountRows(msgspec.Struct, frozen=True):
    """Command: report how many rows chose each expert."""


class RowsCounted(msgspec.Struct, frozen=True):
    """Event: rows of a rank since it joined.

    Args:
        rows: [layer][expert]
        exchange: of the rank with its peers; None where it is not counted.
    """

    rank: int
    rows: tuple[tuple[int, ...], ...]
    exchange: ExchangeFacts | None = None


MoveOrder = FetchExpert | SwitchMap | LoadExpert | MovesEnded
"""What a mover asks of ranks; each is answered."""
ExpertOrder = MoveOrder | CountRows
"""What a shell asks of a rank about experts."""
MoveAnswer = MoveFetched | MoveLoaded | MoveFailed | MapSwitched | MovesStopped
"""Answers to that."""
RankEvent = MoveAnswer | RowsCounted
"""A rank's answers."""
