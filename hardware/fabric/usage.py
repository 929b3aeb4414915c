"""Counters of a plane: bytes moved, and bytes that it could have carried."""

from dataclasses import dataclass

from hardware.spec.plane import Plane
from hardware.units import Bytes, Seconds


@dataclass(frozen=True, slots=True)
class PlaneReading:
    """A plane's counters at one moment; all grow from the start of the fabric.

    Attributes:
        moved_bytes: payload of all transfers so far, each counted once, including the moved part of cancelled ones.
        carried_bytes: the same, counted on every link of the plane that it crossed.
        offered_bytes: capacity of all links of the plane together, times time.
    """

    at_s: Seconds
    moved_bytes: Bytes
    carried_bytes: float
    offered_bytes: float


class PlaneMeter:
    """Counters of one plane that the fabric keeps: bytes moved by ended transfers, and the integral of the capacity."""

    __slots__ = ("_capacity", "_carried", "_changed_s", "_moved", "_offered", "left", "plane")

    def __init__(self, plane: Plane, bytes_per_s: float) -> None:
        self.plane = plane
        self.left = 1.0
        """Part of the plane's capacity that works; a lost sub-plane takes its part away."""
        self._capacity = bytes_per_s
        self._changed_s = 0.0
        self._offered = 0.0
        self._moved = 0
        self._carried = 0

    @property
    def moved_bytes(self) -> Bytes:
        """Payload of ended transfers."""
        return Bytes(self._moved)

    def ended(self, nbytes: int, links: int) -> None:
        """Count the bytes that a transfer moved over this plane. Effects: the counters grow."""
        self._moved += nbytes
        self._carried += nbytes * links

    def set_capacity(self, now: float, bytes_per_s: float) -> None:
        """From now on, all links together have this much. Effects: closes the stretch before."""
        self._offered += self._capacity * (now - self._changed_s)
        self._changed_s = now
        self._capacity = bytes_per_s

    def reading(self, now: float, moved: float, carried: float) -> PlaneReading:
        """The counters, including the moved and carried bytes of running transfers."""
        return PlaneReading(
            Seconds(now),
            Bytes(self._moved + int(moved)),
            self._carried + carried,
            self._offered + self._capacity * (now - self._changed_s),
        )
