"""Expert map of a group: the slots of each layer's experts, and the share of an expert's tokens for each of its slots.

Shares are whole sixteenths, so that a table of 16 rows spreads an expert's tokens exactly by weight: the token at
position p of rank r reads row r + p (mod 16). Maps are values. Ranks of a group may use two versions for a while.
"""

from collections.abc import Collection, Sequence

import msgspec
from msgspec import Struct

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


class GateRule(Struct, frozen=True):
    """How a gate chooses experts, as far as it limits which of them may be masked.

    Args:
        top_k: experts of a token; 0 = unknown, so that none may be masked.
        groups: of experts. kept: groups from which a token's experts are chosen.
        best: experts of a group whose scores rank it.
    """

    top_k: int = 0
    groups: int = 1
    kept: int = 1
    best: int = 1

    def may_mask(self, masked: Collection[int], experts: int) -> bool:
        """Whether enough experts of a layer are left, in whichever groups a gate chooses.

        Args:
            experts: of the layer, in groups of one size.
        """
        size = experts // self.groups
        left = [size - sum(expert // size == group for expert in masked) for group in range(self.groups)]
        usable = sorted(count for count in left if count >= self.best)
        return self.top_k > 0 and len(usable) >= self.kept and sum(usable[: self.kept]) >= self.top_k


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

    @property
    def masked_count(self) -> int:
        """Masked experts of all layers."""
        return sum(len(one.masked) for one in self.layers)

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


# Facts of one rank about experts: destinations of its rows, and its own experts. Small enough to announce every
# second.


class ExpertRows(Struct, frozen=True, array_like=True):
    """Rows that chose one expert."""

    layer: int
    expert: int
    rows: int


class ExpertWork(Struct, frozen=True, array_like=True):
    """Work of one rank's experts for all ranks since it joined, without its attention and waits.

    Args:
        seconds: of computing. rows: received, each counted once per expert that it chose.
        nets: experts whose weights were read, counted in each layer of each step.
    """

    seconds: float = 0.0
    rows: int = 0
    nets: int = 0


class SessionTimes(Struct, frozen=True, omit_defaults=True):
    """Time of a rank's sessions by part, from asking for one layer's results until they are added.

    With one micro-batch these are parts of its steps; with two, attention of one may run during those of the other.

    Args:
        a2e_s: from asking until the expert rank that answers last takes the rows [s].
        experts_s: that rank's computing [s].
        e2a_s: from then until the results are added [s].
        rounds: sessions times layers; without those answered by a rank of another host, whose clock differs.
    """

    a2e_s: float = 0.0
    experts_s: float = 0.0
    e2a_s: float = 0.0
    rounds: int = 0

    @property
    def parts(self) -> dict[str, float]:
        """The times by name; the cost model prices the same three."""
        return {"A2E": self.a2e_s, "experts": self.experts_s, "E2A": self.e2a_s}

    def __add__(self, other: "SessionTimes") -> "SessionTimes":
        if not other.rounds:
            return self
        return SessionTimes(
            self.a2e_s + other.a2e_s, self.experts_s + other.experts_s, self.e2a_s + other.e2a_s,
            self.rounds + other.rounds,
        )  # fmt: skip

    def since(self, earlier: "SessionTimes") -> "SessionTimes":
        """Difference to an earlier reading; `NO_SESSIONS` without a round since."""
        if self.rounds <= earlier.rounds:
            return NO_SESSIONS
        return SessionTimes(
            self.a2e_s - earlier.a2e_s, self.experts_s - earlier.experts_s, self.e2a_s - earlier.e2a_s,
            self.rounds - earlier.rounds,
        )  # fmt: skip


NO_SESSIONS = SessionTimes()


class ExchangeFacts(Struct, frozen=True):
    """One rank's exchange with its peers since it joined. Tuples are indexed by rank; its own entry is 0.

    Args:
        sent_bytes: rows of this rank read by each peer's experts.
        returned_bytes: results for them, from each peer.
        waited_s: time that it waited, by the peer that arrived last [s].
        worked_s: time of its steps without these waits, including steps that only served peers [s].
        work: of this rank's experts, a part of `worked_s`.
        sessions: of this rank's own rows.
    """

    sent_bytes: tuple[int, ...]
    returned_bytes: tuple[int, ...]
    waited_s: tuple[float, ...]
    worked_s: float
    work: ExpertWork = ExpertWork()
    sessions: SessionTimes = NO_SESSIONS


class ExpertFacts(Struct, frozen=True):
    """One rank's view. A row that chooses several experts of a layer counts for each of them.

    Args:
        epoch: in which it computes. map_version: of the expert map in use.
        members: ranks that compute together.
        ranks, experts: of the group, of a layer.
        to_ranks: [layer][rank] rows of this rank since it joined, by the rank that computes them in its latest map.
        rows: [layer][expert] the same by expert; empty if the table would be large: then `busiest` has the top.
        held: [layer] experts in its own slots; empty if the table would be large.
        held_count, borrowed_count: experts over all layers, in its own slots and in reserve slots for lost ranks.
        borrowed: [layer, expert] of the latter, the first ones.
        masked_count: experts of all layers that no rank holds, so that gates choose others.
        masked_rows: rows of this rank's steps that were computed without such experts, since it joined.
        exchange: None if it is not measured.
        layer_names: [layer] its number in the model, or `draft`; empty from ranks that do not report it.
    """

    epoch: int
    map_version: int
    members: tuple[int, ...]
    ranks: int
    experts: int
    to_ranks: tuple[tuple[int, ...], ...]
    rows: tuple[tuple[int, ...], ...] = ()
    busiest: tuple[ExpertRows, ...] = ()
    held: tuple[tuple[int, ...], ...] = ()
    held_count: int = 0
    borrowed: tuple[tuple[int, int], ...] = ()
    borrowed_count: int = 0
    exchange: ExchangeFacts | None = None
    layer_names: tuple[str, ...] = ()
    masked_count: int = 0
    masked_rows: int = 0

    @property
    def sent(self) -> tuple[int, ...]:
        """Rows of this rank by layer."""
        return tuple(map(sum, self.to_ranks))


# Messages about expert moves: a shell's requests to its ranks, and their responses.

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
