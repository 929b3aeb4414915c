"""A die's memory as a ledger of named reservations.

It does not allocate memory: the ledger decides what would fit. An instance reserves before it allocates, so that the
scheduler's KV capacity equals that of the virtual die.

    |<------------------- capacity_bytes ------------------->|
    | weights | workspace | kv_cache |          free          |
    |<----------- used_bytes ------->|
"""

from collections.abc import Mapping
from types import MappingProxyType

from hardware.errors import HbmExhaustedError, HbmReservationError, SpecError
from hardware.units import Bytes, format_bytes


class HbmLedger:
    """Named byte reservations that together never exceed the capacity."""

    def __init__(self, capacity_bytes: int, name: str = "HBM") -> None:
        """
        Args:
            capacity_bytes: bytes of the die; above zero.
            name: whose ledger it is, for messages.
        Raises: SpecError if the capacity is not above zero.
        """
        if capacity_bytes <= 0:
            raise SpecError(f"{name}: capacity is {capacity_bytes} bytes; it must be above zero")
        self._name = name
        self._capacity = capacity_bytes
        self._held: dict[str, int] = {}
        self._used = 0
        self._high_water = 0

    @property
    def capacity_bytes(self) -> Bytes:
        """Bytes of the die."""
        return Bytes(self._capacity)

    @property
    def used_bytes(self) -> Bytes:
        """Bytes reserved now."""
        return Bytes(self._used)

    @property
    def free_bytes(self) -> Bytes:
        """Bytes that a reservation may still take."""
        return Bytes(self._capacity - self._used)

    @property
    def high_water_bytes(self) -> Bytes:
        """The largest total reservation so far."""
        return Bytes(self._high_water)

    @property
    def reservations(self) -> Mapping[str, int]:
        """Reserved bytes by owner: a read-only view that follows the ledger."""
        return MappingProxyType(self._held)

    def reserve(self, name: str, nbytes: int) -> None:
        """Takes bytes under a name.

        Args:
            name: not in use yet.
            nbytes: 0 is allowed and holds the name.
        Raises: HbmReservationError if the name is in use or the size negative; HbmExhaustedError if it does not fit.
        Effects: on success the bytes are used; on error it is unchanged.
        """
        if name in self._held:
            raise HbmReservationError(
                f"{self._name}: {name!r} already holds {format_bytes(self._held[name])}; release or resize it first"
            )
        self._change(name, nbytes)

    def release(self, name: str) -> Bytes:
        """Release the bytes reserved under a name.

        Returns: the bytes that became free.
        Raises: HbmReservationError if the name is unknown.
        Effects: the name may be used again.
        """
        self._require(name)
        nbytes = self._held.pop(name)
        self._used -= nbytes
        return Bytes(nbytes)

    def check(self) -> None:
        """Asserts that the books balance: the sum held is the sum used, and within the capacity."""
        assert self._used == sum(self._held.values()), f"{self._name}: used {self._used} is not the sum of {self._held}"
        assert all(nbytes >= 0 for nbytes in self._held.values()), f"{self._name}: a negative holding in {self._held}"
        assert 0 <= self._used <= self._high_water <= self._capacity, (
            f"{self._name}: used, high water, capacity disagree"
        )

    def _require(self, name: str) -> None:
        if name not in self._held:
            holders = ", ".join(self._held) or "nobody"
            raise HbmReservationError(f"{self._name}: nothing is reserved under {name!r}; holders: {holders}")

    def _change(self, name: str, nbytes: int) -> None:
        if nbytes < 0:
            raise HbmReservationError(f"{self._name}: {name!r} asked for {nbytes} bytes; a size cannot be negative")
        grown = nbytes - self._held.get(name, 0)
        if grown > self.free_bytes:
            holders = ", ".join(f"{who} {format_bytes(held)}" for who, held in self._held.items()) or "nobody"
            raise HbmExhaustedError(
                f"{self._name}: {name!r} asked for {format_bytes(grown)} more, "
                f"free are {format_bytes(self.free_bytes)} of {format_bytes(self._capacity)} (held by {holders}); "
                "take more NPUs, a smaller model or a larger HBM per die"
            )
        self._held[name] = nbytes
        self._used += grown
        self._high_water = max(self._high_water, self._used)
