"""A virtual NPU: an identity in the topology, a byte ledger per die, a clock, and counters.

It does not compute. The computing party (torch live, a cost model in a simulation) reports its work to this class, and
the status pages read it. Not thread-safe: it belongs to the one engine thread of its instance.
"""

from dataclasses import dataclass, field
from typing import Any

from hardware.clock import Clock
from hardware.device.hbm import HbmLedger
from hardware.errors import SpecError
from hardware.spec.plane import Plane
from hardware.spec.supernode import NpuSpec
from hardware.topology import DieId, NpuId
from hardware.units import Bytes, Seconds

_NO_TIME = Seconds(0.0)


@dataclass(slots=True)
class NpuCounters:
    """Work of an NPU since it was made; every number only grows.

    Attributes:
        steps: forward passes taken part in.
        tokens: tokens that those passes processed.
        busy_s: time really spent in them.
        predicted_s: time that a real NPU would have spent, by the cost model; 0 without a prediction.
        moved_bytes: bytes sent or received, by plane.
    """

    steps: int = 0
    tokens: int = 0
    busy_s: Seconds = _NO_TIME
    predicted_s: Seconds = _NO_TIME
    moved_bytes: dict[Plane, int] = field(default_factory=lambda: dict.fromkeys(Plane, 0))

    def add_step(self, tokens: int, busy_s: float, predicted_s: float) -> None:
        """Counts one forward pass; the caller ensures that no value is negative.

        Effects: the counters grow.
        """
        self.steps += 1
        self.tokens += tokens
        self.busy_s = Seconds(self.busy_s + busy_s)
        self.predicted_s = Seconds(self.predicted_s + predicted_s)


class VirtualNpu:
    """One package of dies, given to an instance as a whole."""

    def __init__(self, npu_id: NpuId, spec: NpuSpec, clock: Clock) -> None:
        """
        Args:
            npu_id: where it sits.
            spec: what it is; `NpuSpec.with_hbm_per_die` makes a scaled-down one.
            clock: time since the NPU was made is read from it.
        """
        self.id = npu_id
        self.spec = spec
        self.clock = clock
        self.counters = NpuCounters()
        self.dies = tuple(DieId(npu_id, index) for index in range(spec.dies))
        self.ledgers = {die: HbmLedger(spec.die.hbm_bytes, f"HBM of {die}") for die in self.dies}
        self._made_at = clock.now()

    @property
    def used_bytes(self) -> Bytes:
        """Bytes reserved on all dies."""
        return Bytes(sum(ledger.used_bytes for ledger in self.ledgers.values()))

    @property
    def free_bytes(self) -> Bytes:
        """Bytes free on all dies; one reservation still has to fit on one die."""
        return Bytes(sum(ledger.free_bytes for ledger in self.ledgers.values()))

    def record_step(self, tokens: int, busy_s: float, predicted_s: float = 0.0) -> None:
        """Counts one forward pass.

        Args:
            tokens: processed by the pass; 0 is allowed.
            busy_s: time that it really took [s].
            predicted_s: time that a real NPU would take [s].
        Raises: SpecError if a number is negative.
        Effects: the counters grow.
        """
        require_counts(self.id, tokens=tokens, busy_s=busy_s, predicted_s=predicted_s)
        self.counters.add_step(tokens, busy_s, predicted_s)

    def record_moved(self, plane: Plane, nbytes: int) -> None:
        """Counts bytes sent or received over a plane.

        Raises: SpecError if the count is negative.
        Effects: the counter of that plane grows.
        """
        require_counts(self.id, nbytes=nbytes)
        self.counters.moved_bytes[plane] += nbytes

    def check(self) -> None:
        """Asserts that every die's ledger balances."""
        for ledger in self.ledgers.values():
            ledger.check()

    def snapshot(self) -> dict[str, Any]:
        """State as plain values, for a status page or a message.

        Returns: id, model, up_s, steps, tokens, busy_s, predicted_s, moved_bytes by plane, and one entry per die with
            capacity, used, high-water bytes and the reservations by name.
        """
        counters = self.counters
        return {
            "id": str(self.id),
            "model": self.spec.name,
            "up_s": self.clock.now() - self._made_at,
            "steps": counters.steps,
            "tokens": counters.tokens,
            "busy_s": counters.busy_s,
            "predicted_s": counters.predicted_s,
            "moved_bytes": {str(plane): nbytes for plane, nbytes in counters.moved_bytes.items()},
            "dies": [
                {
                    "id": str(die),
                    "hbm_capacity_bytes": ledger.capacity_bytes,
                    "hbm_used_bytes": ledger.used_bytes,
                    "hbm_high_water_bytes": ledger.high_water_bytes,
                    "reservations": dict(ledger.reservations),
                }
                for die, ledger in self.ledgers.items()
            ],
        }


def require_counts(who: object, **counts: float) -> None:
    """Refuses negative numbers before anything is counted.

    Raises: SpecError naming the first of them.
    """
    for name, value in counts.items():
        if value < 0:
            raise SpecError(f"{who}: {name} is {value}; counters only grow, so it cannot be negative")
