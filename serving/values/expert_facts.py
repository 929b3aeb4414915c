"""Facts of one rank about experts: destinations of its rows, and its own experts. Small enough to announce every
second."""

from msgspec import Struct


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


class ExchangeFacts(Struct, frozen=True):
    """One rank's exchange with its peers since it joined. Tuples are indexed by rank; its own entry is 0.

    Args:
        sent_bytes: rows of this rank read by each peer's experts.
        returned_bytes: results for them, from each peer.
        waited_s: time that it waited, by the peer that arrived last [s].
        worked_s: time of its steps without these waits, including steps that only served peers [s].
        work: of this rank's experts, a part of `worked_s`.
    """

    sent_bytes: tuple[int, ...]
    returned_bytes: tuple[int, ...]
    waited_s: tuple[float, ...]
    worked_s: float
    work: ExpertWork = ExpertWork()


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

    @property
    def sent(self) -> tuple[int, ...]:
        """Rows of this rank by layer."""
        return tuple(map(sum, self.to_ranks))
