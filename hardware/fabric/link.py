"""A link: one direction of one port, with a capacity that its transfers share."""

import math
from dataclasses import dataclass
from typing import NewType

from hardware.errors import FabricError
from hardware.spec.plane import Plane

LinkId = NewType("LinkId", str)
TransferId = NewType("TransferId", str)
Route = tuple[LinkId, ...]
"""Links that a transfer crosses, each with its whole rate; the order does not matter."""


@dataclass(frozen=True, slots=True)
class Link:
    """Capacity of one link.

    Attributes:
        name: unique on its fabric, such as `rdma/n3.npu5.die1/out`.
        plane: the network that it belongs to.
        bytes_per_s: capacity, one direction; 0 for a link that starts broken.
    Raises: FabricError if the capacity is negative or not finite.
    """

    name: LinkId
    plane: Plane
    bytes_per_s: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.bytes_per_s) and self.bytes_per_s >= 0):
            raise FabricError(f"link {self.name} has {self.bytes_per_s} bytes/s; it must be finite and not negative")
