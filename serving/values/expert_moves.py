"""Messages about expert moves: a shell's requests to its ranks, and their responses."""

import msgspec

from serving.values.expert_facts import ExchangeFacts
from serving.values.expert_map import ExpertMap, ExpertSlot

Held = tuple[tuple[int | None, ...], ...]
"""Experts in a rank's own slots, [layer][slot]; None = the slot is empty, or its content is undefined."""


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
    """Effect: copy an expert's weights to the staging memory of the target's rank."""

    move: ExpertMove


class SwitchMap(msgspec.Struct, frozen=True):
    """Effect: let each rank use this map from its next step on."""

    map: ExpertMap


class LoadExpert(msgspec.Struct, frozen=True):
    """Effect: write staged weights into the slot."""

    move: ExpertMove


class MovesEnded(msgspec.Struct, frozen=True):
    """Effect: no move is in progress any more; staged weights that were not loaded can be dropped.

    Args:
        reason: None if all rounds were completed, otherwise why the others were not.
    """

    reason: str | None


class MoveFetched(msgspec.Struct, frozen=True):
    """Event: the weights are staged."""

    move: ExpertMove


class MoveLoaded(msgspec.Struct, frozen=True):
    """Event: the slot holds the expert."""

    move: ExpertMove


class MoveFailed(msgspec.Struct, frozen=True):
    """Event: a fetch or a load has failed permanently."""

    move: ExpertMove
    reason: str


class MapSwitched(msgspec.Struct, frozen=True):
    """Event: the map of this version is in use, at one rank or, as an event of the mover, at all ranks."""

    version: int


class MovesStopped(msgspec.Struct, frozen=True):
    """Event: a rank acknowledges the end of moves. It loads no more weights, and its slots contain `held`."""

    rank: int
    held: Held


class CountRows(msgspec.Struct, frozen=True):
    """Command: report how many rows chose each expert."""


class RowsCounted(msgspec.Struct, frozen=True):
    """Event: rows of a rank since it joined.

    Args:
        rows: [layer][expert]
        exchange: of the rank with its peers; None if it is not measured.
    """

    rank: int
    rows: tuple[tuple[int, ...], ...]
    exchange: ExchangeFacts | None = None


MoveOrder = FetchExpert | SwitchMap | LoadExpert | MovesEnded
"""Commands of a mover to ranks; each gets a response."""
ExpertOrder = MoveOrder | CountRows
"""Commands of a shell to a rank about experts."""
MoveAnswer = MoveFetched | MoveLoaded | MoveFailed | MapSwitched | MovesStopped
"""Responses to `MoveOrder`."""
RankEvent = MoveAnswer | RowsCounted
"""Responses of a rank."""
