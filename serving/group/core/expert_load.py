"""Load of experts: tokens by layer, expert, time slice and source rank, in a window that forgets.

Each rank counts the destinations of its tokens, and the window adds its reports. Windows of several ranks can be
merged.
"""

from array import array
from collections.abc import Collection, Sequence

import msgspec

LayerLoad = tuple[tuple[int, ...], ...]
"""Tokens of one layer's experts, [slice][expert], oldest slice first."""


class LoadReport(msgspec.Struct, frozen=True):
    """Tokens that a rank has sent to each expert since its last report.

    Args:
        tokens: [layer][expert].
    """

    rank: int
    tokens: tuple[tuple[int, ...], ...]


class LoadWindow:
    """The latest slices of time. Uses at most slices × ranks × layers × experts × 8 bytes of memory.

    Args:
        slice_s: length of a slice [s].
        slices: number of slices kept.
    """

    def __init__(self, layers: int, experts: int, *, slice_s: float, slices: int) -> None:
        self.layers, self.experts, self.slice_s, self.slices = layers, experts, slice_s, slices
        self._counts: dict[int, dict[int, array[int]]] = {}  # slice, rank -> [layer * experts + expert]
        self._newest = 0
        self.late = 0
        """Reports that were older than the window."""

    def add(self, report: LoadReport, now: float) -> None:
        """Count a report in the slice of `now`.

        Raises: ValueError if its shape is not the window's, or a count is negative.
        """
        flat = [count for row in report.tokens for count in row]
        if len(report.tokens) != self.layers or any(len(row) != self.experts for row in report.tokens):
            raise ValueError(f"rank {report.rank} reports another number of layers or experts")
        if min(flat, default=0) < 0:
            raise ValueError(f"rank {report.rank} reports a negative number of tokens")
        self._add(int(now // self.slice_s), report.rank, flat)

    def merge(self, other: "LoadWindow") -> None:
        """Add the counts of another window of the same shape and slices. The order of merges does not matter."""
        own = (self.layers, self.experts, self.slice_s)
        if own != (other.layers, other.experts, other.slice_s):
            raise ValueError("windows of different shapes cannot be merged")
        for number in sorted(other._counts):
            for rank, counts in other._counts[number].items():
                self._add(number, rank, counts)

    def layer(self, layer: int, now: float) -> LayerLoad:
        """Tokens of a layer from all ranks, [slice][expert]; slices without any report are left out."""
        first, rows = layer * self.experts, []
        for number in self._kept(now):
            totals = [0] * self.experts
            for counts in self._counts[number].values():
                totals = [one + more for one, more in zip(totals, counts[first : first + self.experts], strict=True)]
            rows.append(tuple(totals))
        return tuple(rows)

    def sources(self, layer: int, now: float) -> dict[int, tuple[int, ...]]:
        """Tokens of a layer by source rank, {rank: [expert]}, over the window."""
        first, found = layer * self.experts, dict[int, tuple[int, ...]]()
        for number in self._kept(now):
            for rank, counts in self._counts[number].items():
                row = counts[first : first + self.experts]
                found[rank] = tuple(map(sum, zip(found.get(rank, (0,) * self.experts), row, strict=True)))
        return found

    def after(self, number: int, now: float) -> list[tuple[int, int, tuple[int, ...]]]:
        """Completed slices: number, source rank, and its tokens as [layer * experts + expert].

        Args:
            number: of the slice before the first one to return.
        """
        over = [one for one in self._kept(now) if number < one < int(now // self.slice_s)]
        return [(one, rank, tuple(counts)) for one in over for rank, counts in sorted(self._counts[one].items())]

    def forget(self, rank: int) -> None:
        """Drop the counts of a rank that has left: its sequences are counted at their present ranks."""
        for ranks in self._counts.values():
            ranks.pop(rank, None)

    def _add(self, number: int, rank: int, flat: Sequence[int]) -> None:
        if number <= self._newest - self.slices:
            self.late += 1
            return
        self._newest = max(self._newest, number)
        for old in [one for one in self._counts if one <= self._newest - self.slices]:
            del self._counts[old]
        ranks = self._counts.setdefault(number, {})
        before = ranks.get(rank)
        ranks[rank] = array("Q", flat if before is None else map(sum, zip(before, flat, strict=True)))

    def _kept(self, now: float) -> list[int]:
        """Slices of the window that ends now, oldest first, without slices that have no ranks left."""
        oldest = int(now // self.slice_s) - self.slices
        return sorted(number for number, ranks in self._counts.items() if number > oldest and ranks)


class CountedLoad:
    """Load of a group's experts, from what each process has counted since it started.

    The first count of a process is only a baseline for the next one.

    Args:
        layers, experts, slice_s, slices: see `LoadWindow`.
    """

    def __init__(self, layers: int, experts: int, *, slice_s: float, slices: int) -> None:
        self.window = LoadWindow(layers, experts, slice_s=slice_s, slices=slices)
        self._rows: dict[int, tuple[tuple[int, ...], ...]] = {}
        """By process: its latest count."""

    def keep(self, pids: Collection[int]) -> None:
        """Forget the counts of all processes but these; the window keeps what they have added."""
        self._rows = {pid: rows for pid, rows in self._rows.items() if pid in pids}

    def count(self, rank: int, pid: int, rows: tuple[tuple[int, ...], ...], now: float) -> None:
        """Add what a process has counted since its last call.

        Args:
            rows: [layer][expert] since it started.
        Raises: ValueError as `LoadWindow.add`.
        """
        before = self._rows.get(pid)
        self._rows[pid] = rows
        if before is not None:
            new = tuple(tuple(map(int.__sub__, *pair)) for pair in zip(rows, before, strict=True))
            self.window.add(LoadReport(rank, new), now)

    def loads(self, now: float) -> list[LayerLoad]:
        """[layer] Load over the window."""
        return [self.window.layer(layer, now) for layer in range(self.window.layers)]

    def totals(self, now: float) -> list[tuple[int, ...]]:
        """[layer][expert] Tokens over the window; of no layer before the first count."""
        return [tuple(map(sum, zip(*load, strict=True))) for load in self.loads(now)]


def total(load: LayerLoad, experts: int) -> tuple[int, ...]:
    """Tokens of each expert over all slices."""
    return tuple(map(sum, zip(*load, strict=True))) if load else (0,) * experts
