"""The fabric's working state: a pipe is a link in use, a flow is a transfer under way. Internal to this package."""

import math
from collections.abc import Iterable
from operator import attrgetter

from hardware.fabric.routes import LinkId, TransferId
from hardware.spec.plane import Plane


class Pipe:
    """A link with the flows that cross it.

    `capacity` is `base` (the link's own) times what its plane has left. `room` and `open` are scratch of one filling.
    `flows` is a dictionary for its order: iteration must not depend on addresses.
    """

    __slots__ = ("base", "capacity", "flows", "index", "name", "open", "plane", "room")

    def __init__(self, index: int, name: LinkId, plane: Plane, bytes_per_s: float) -> None:
        self.index = index
        self.name = name
        self.plane = plane
        self.base = bytes_per_s
        self.capacity = bytes_per_s
        self.flows: dict[Flow, None] = {}
        self.room = 0.0
        self.open = 0


class Flow:
    """A transfer with its rate.

        start         updated          now            end
          |--latency--|----------- at rate -----------|
                      `remaining` bytes are left here

    Attributes:
        cap: the largest rate of its ends, regardless of the links [bytes/s].
        remaining: bytes not yet moved at `updated`.
        updated: when `remaining` was right; before the first byte it is in the future.
        rate: bytes per second since `updated`.
        end: when it ends at this rate; infinite while it is stalled.
        ceiling: scratch of one filling.
    """

    __slots__ = ("cap", "ceiling", "end", "name", "nbytes", "pipes", "planes", "rate", "remaining", "updated")

    def __init__(
        self,
        name: TransferId,
        path: "Path",
        nbytes: int,
        first_byte_s: float,
        cap: float,
    ) -> None:
        self.name = name
        self.pipes = path.pipes
        self.planes = path.planes
        self.nbytes = nbytes
        self.remaining = float(nbytes)
        self.updated = first_byte_s
        self.cap = cap
        self.rate = 0.0
        self.end = math.inf
        self.ceiling = cap

    def left_at(self, now: float) -> float:
        """Bytes not yet moved at `now`, which is not before the last change of rate."""
        if now <= self.updated:
            return self.remaining
        return max(0.0, self.remaining - self.rate * (now - self.updated))


class Path:
    """A route as its pipes, with their number in each plane. Created once for each route, then cached."""

    __slots__ = ("pipes", "planes")

    def __init__(self, pipes: tuple[Pipe, ...]) -> None:
        self.pipes = pipes
        names = [pipe.plane for pipe in pipes]
        self.planes = tuple((plane, names.count(plane)) for plane in Plane if plane in names)


# Max-min fair rates by progressive filling. Internal to this package.
#
# All rates grow together; a flow stops where it meets its own ceiling or where a pipe that it crosses is full, and the
# rest go on. The result is the one allocation in which no flow can have more without taking from one that has no more
# than itself.
#
# A pipe with a single flow is no place of sharing: it is one more ceiling of that flow. So a pipe counts as shared only
# if two flows cross it, and two flows affect each other only if a chain of shared pipes connects them.
#
# The result does not depend, not even in the last bit, on the order in which flows were added: within one round the
# same number is subtracted from every pipe, ceilings are taken in ascending order, and equally full pipes in the order
# of their index.

_by_index = attrgetter("index")
_by_ceiling = attrgetter("ceiling")
_UNSET = -1.0


def joined(start: Iterable[Pipe]) -> tuple[list[Flow], list[Pipe]]:
    """Flows that a change on some pipes can touch, and the pipes that they share in order of index."""
    pipes = [pipe for pipe in start if pipe.flows]
    known = set(pipes)
    flows: dict[Flow, None] = {}
    for pipe in pipes:  # grows while it is read
        for flow in pipe.flows:
            if flow not in flows:
                flows[flow] = None
                for other in flow.pipes:
                    if other not in known and len(other.flows) > 1:
                        known.add(other)
                        pipes.append(other)
    shared = [pipe for pipe in pipes if len(pipe.flows) > 1]
    shared.sort(key=_by_index)
    return list(flows), shared


def settle(flows: Iterable[Flow], now: float) -> None:
    """Brings flows' remaining bytes up to `now`, at the rates that they had.

    Effects: sets `remaining` and `updated`; twice at the same time is the same as once.
    """
    for flow in flows:
        updated = flow.updated
        if now > updated:
            left = flow.remaining - flow.rate * (now - updated)
            flow.remaining = left if left > 0.0 else 0.0
            flow.updated = now


def fill(flows: list[Flow], shared: list[Pipe]) -> None:
    """Gives every flow its fair rate.

    Args:
        flows: closed under sharing: every flow of a shared pipe is in it.
        shared: pipes that two or more of them cross, in order of index.
    Effects: sets `rate`, and the scratch fields.
    """
    for pipe in shared:
        pipe.room = pipe.capacity
        pipe.open = len(pipe.flows)
    for flow in flows:
        ceiling = flow.cap
        for pipe in flow.pipes:
            if len(pipe.flows) == 1 and pipe.capacity < ceiling:
                ceiling = pipe.capacity
        flow.ceiling = ceiling
        flow.rate = _UNSET
    waiting = sorted(flows, key=_by_ceiling, reverse=True)
    while waiting:
        fullest, share = _fullest(shared)
        if waiting[-1].ceiling <= share:
            while waiting and waiting[-1].ceiling <= share:
                flow = waiting.pop()
                _give(flow, flow.ceiling)
        else:
            assert fullest is not None, "a flow has no ceiling and crosses no shared pipe"
            for flow in fullest.flows:
                if flow.rate == _UNSET:
                    _give(flow, share)
            waiting = [flow for flow in waiting if flow.rate == _UNSET]


def _fullest(shared: list[Pipe]) -> tuple[Pipe | None, float]:
    """The pipe that leaves least to each flow that still waits, and how much that is."""
    fullest, least = None, math.inf
    for pipe in shared:
        if pipe.open:
            share = pipe.room / pipe.open
            if share < least:
                fullest, least = pipe, share
    return fullest, least if least > 0.0 else 0.0


def _give(flow: Flow, rate: float) -> None:
    """Fixes a flow's rate and takes it from its pipes. A pipe that is not shared has no use for the subtraction."""
    flow.rate = rate
    for pipe in flow.pipes:
        pipe.room -= rate
        pipe.open -= 1
