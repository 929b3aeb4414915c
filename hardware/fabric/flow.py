"""The fabric's working state: a pipe is a link in use, a flow is a transfer under way. Internal to this package."""

import math

from hardware.fabric.link import LinkId, TransferId
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
