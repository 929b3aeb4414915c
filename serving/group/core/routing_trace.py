"""Routing trace: number of rows that chose each expert, by layer, source rank and time slice.

A text file, one JSON value a line. The first line is a head, every other line has one rank in one slice:

    {"format": "cloudmatrix-routing-trace", "version": 1, "group": "decode#k3jx9a", "layers": 3, "experts": 8,
     "slice_s": 2.0}
    {"at_s": 1764160000.0, "rank": 0, "rows": [[12, 0, 4, ...], ...]}

`at_s` is the start of the slice, in seconds since 1970; `rows` are [layer][expert] and count a row once for each expert
that it chose. Slices in which a rank had no rows are left out. A truncated last line is ignored.
"""

from collections.abc import Iterable, Iterator
from typing import Any, Literal

import msgspec

from hardware.nesting import parse_json
from serving.errors import UNREADABLE, RoutingTraceError
from serving.group.core.expert_load import LayerLoad

FORMAT: Literal["cloudmatrix-routing-trace"] = "cloudmatrix-routing-trace"
VERSION: Literal[1] = 1


class TraceHead(msgspec.Struct, frozen=True):
    """First line.

    Args:
        layers: with routed experts. experts: of a layer.
        slice_s: length of a slice [s].
    """

    group: str
    layers: int
    experts: int
    slice_s: float
    format: Literal["cloudmatrix-routing-trace"] = FORMAT
    version: Literal[1] = VERSION


class TraceSlice(msgspec.Struct, frozen=True):
    """Rows of one rank in one slice of time.

    Args:
        at_s: start of the slice, since 1970 [s].
        rows: [layer][expert].
    """

    at_s: float
    rank: int
    rows: tuple[tuple[int, ...], ...]


class RoutingTrace(msgspec.Struct, frozen=True):
    """A complete trace."""

    head: TraceHead
    slices: tuple[TraceSlice, ...]

    def loads(self) -> list[LayerLoad]:
        """[layer][slice][expert] rows of all ranks, as placement policies take them; the oldest slice first."""
        times = sorted({one.at_s for one in self.slices})
        place = {at: number for number, at in enumerate(times)}
        found = [[[0] * self.head.experts for _ in times] for _ in range(self.head.layers)]
        for one in self.slices:
            for layer, row in enumerate(one.rows):
                into = found[layer][place[one.at_s]]
                for expert, count in enumerate(row):
                    into[expert] += count
        return [tuple(map(tuple, layer)) for layer in found]


def trace_lines(head: TraceHead, slices: Iterable[TraceSlice]) -> Iterator[bytes]:
    """Lines of a file."""
    for one in (head, *slices):
        yield msgspec.json.encode(one) + b"\n"


def read_trace(lines: Iterable[bytes]) -> RoutingTrace:
    """Read a trace.

    Raises: RoutingTraceError if the file is not a trace, or is invalid before its last line.
    """
    head, slices, broken = None, list[TraceSlice](), ""
    for number, line in enumerate(lines, 1):
        if broken:
            raise RoutingTraceError(broken)
        try:
            if head is None:
                head = msgspec.convert(parse_json(line), TraceHead)
                continue
            one = msgspec.convert(parse_json(line), TraceSlice)
        except (*UNREADABLE, ValueError) as error:  # maybe cut off, which only a last line may be
            broken = f"line {number} of the routing trace: {error}"
            continue
        if len(one.rows) != head.layers or any(len(row) != head.experts for row in one.rows):
            raise RoutingTraceError(f"line {number} of the routing trace has another number of layers or experts")
        if min((count for row in one.rows for count in row), default=0) < 0:
            raise RoutingTraceError(f"line {number} of the routing trace has a negative count")
        slices.append(one)
    if head is None:
        raise RoutingTraceError(broken or "the routing trace is empty")
    return RoutingTrace(head, tuple(slices))


def slices_of(shown: list[dict[str, Any]]) -> list[TraceSlice]:
    """Slices in the format of a shell's response to `ReadLoad`."""
    return msgspec.convert(shown, list[TraceSlice])
