"""A virtual instance: whole NPUs that serve one prefill or decode group together.

KV capacity is not configured; it follows. Weights and workspace are reserved first, and the KV blocks get what every
die has left:

    die 0  | weights/n | workspace | b blocks .......... | rest |
    die 1  | weights/n | workspace | b blocks .......... | rest |
                                     same b on every die: the fullest die decides

A block is stored on one die (one latent head cannot be split), and attention is data-parallel over the dies, so all of
them get the same number. Where groups of dies share their sequences, each die of a group holds a block, or its KV
heads' part of it.
"""

from collections.abc import Callable, Sequence
from typing import Any

from hardware.device.hbm import HbmLedger
from hardware.device.npu import VirtualNpu, require_counts
from hardware.errors import HbmExhaustedError, HbmReservationError, SpecError
from hardware.spec.plane import Plane
from hardware.topology import DieId
from hardware.units import Bytes, format_bytes

WEIGHTS = "weights"
WORKSPACE = "workspace"
KV_CACHE = "kv_cache"


class VirtualInstance:
    """The dies of one serving group, and the books over their memory."""

    def __init__(self, name: str, npus: Sequence[VirtualNpu]) -> None:
        """
        Args:
            name: which instance, for messages and status pages.
            npus: at least one, each once, with equal dies.
        Raises: SpecError if there is none, one twice, or dies of different size.
        """
        if not npus or len({npu.id for npu in npus}) != len(npus):
            raise SpecError(
                f"instance {name!r} needs at least one NPU and each only once; got {[str(n.id) for n in npus]}"
            )
        if len({npu.spec.die for npu in npus}) != 1:
            raise SpecError(f"instance {name!r} mixes different dies; give it NPUs of one kind")
        self.name = name
        self.npus = tuple(npus)
        self.dies: tuple[DieId, ...] = tuple(die for npu in npus for die in npu.dies)
        self.kv_blocks = 0
        self._ledgers: tuple[HbmLedger, ...] = tuple(ledger for npu in npus for ledger in npu.ledgers.values())

    @property
    def used_bytes(self) -> Bytes:
        """Bytes reserved on all dies."""
        return Bytes(sum(ledger.used_bytes for ledger in self._ledgers))

    @property
    def capacity_bytes(self) -> Bytes:
        """Bytes of all dies."""
        return Bytes(sum(ledger.capacity_bytes for ledger in self._ledgers))

    def reserve_spread(self, name: str, nbytes: int) -> None:
        """Reserves a total, spread evenly over the dies (the first ones take the odd bytes).

        Args:
            name: not in use yet, e.g. `WEIGHTS`.
            nbytes: total over all dies.
        Raises: HbmExhaustedError or HbmReservationError as `HbmLedger.reserve`.
        Effects: every die holds its share; on error none does.
        """
        share, odd = divmod(nbytes, len(self._ledgers))
        self._reserve_all(name, lambda place: share + (place < odd))

    def reserve_per_die(self, name: str, nbytes: int, *, last: int = 0, on_last: int = 0) -> None:
        """Reserves the same bytes on every die, e.g. `WORKSPACE`.

        Args:
            last: dies at the end that hold `on_last` bytes instead.
        Raises: HbmExhaustedError or HbmReservationError as `HbmLedger.reserve`.
        Effects: every die holds its bytes; on error none does.
        """
        first = len(self._ledgers) - last
        self._reserve_all(name, lambda place: nbytes if place < first else on_last)

    def release(self, name: str) -> Bytes:
        """Release the bytes reserved under a name on every die.

        Returns: bytes that became free, all dies together.
        Raises: HbmReservationError if the name is unknown.
        Effects: the name may be used again; releasing `KV_CACHE` sets the number of blocks to 0.
        """
        freed = sum(ledger.release(name) for ledger in self._ledgers)
        if name == KV_CACHE:
            self.kv_blocks = 0
        return Bytes(freed)

    def kv_capacity_blocks(self, block_bytes: int, dies: int | None = None) -> int:
        """KV blocks that fit into what is free now, the same number on every die.

        Args:
            block_bytes: one block, all layers.
            dies: the first so many only; None = all.
        Returns: blocks over all dies; 0 if none fits.
        Raises: SpecError if the block size is not above zero.
        """
        if block_bytes <= 0:
            raise SpecError(f"a KV block of {block_bytes} bytes cannot be; it must be above zero")
        ledgers = self._ledgers[:dies]
        return len(ledgers) * min(ledger.free_bytes // block_bytes for ledger in ledgers)

    def reserve_kv_cache(
        self,
        block_bytes: int,
        max_blocks: int | None = None,
        *,
        groups: int | None = None,
        parts: int = 1,
        without: int = 0,
    ) -> int:
        """Reserve the KV cache and return its number of blocks.

        Args:
            block_bytes: one block, all layers.
            max_blocks: take no more than this in all; it is rounded down to a whole number per group.
            groups: of dies, equally large, that hold their blocks together; None = each die holds its own.
            parts: into which the dies of a group split a block; 1 = every die of it holds all of the block.
            without: dies at the end that hold no blocks.
        Returns: blocks over all groups, at least one per group.
        Raises: HbmExhaustedError if not one block per group fits (or `max_blocks` allows none); SpecError if the block
            size is not above zero or groups do not divide the dies; HbmReservationError if the cache is already
            reserved.
        Effects: every die that has blocks holds their bytes under `KV_CACHE`; `kv_blocks` is set.
        """
        if KV_CACHE in self._ledgers[0].reservations:
            raise HbmReservationError(f"instance {self.name!r} has its KV cache already; release it first")
        dies = len(self._ledgers) - without
        groups = dies if groups is None else groups
        if groups < 1 or dies % groups or parts < 1:
            raise SpecError(f"instance {self.name!r}: {dies} dies cannot be {groups} equal groups, blocks in {parts}")
        on_a_die = -(-block_bytes // parts)
        fitting = self.kv_capacity_blocks(on_a_die, dies) // dies * groups
        wanted = fitting if max_blocks is None else min(fitting, max_blocks)
        per_group = wanted // groups
        if per_group < 1:
            free = min(ledger.free_bytes for ledger in self._ledgers[:dies])
            raise HbmExhaustedError(
                f"instance {self.name!r}: {wanted} KV blocks of {format_bytes(on_a_die)} are less than one for each "
                f"of {groups} {'dies' if groups == dies else 'groups of dies'} ({format_bytes(free)} free on the "
                "fullest die); take more NPUs, a larger HBM per die, smaller blocks or a larger block limit"
            )
        self.reserve_per_die(KV_CACHE, per_group * on_a_die, last=without)
        self.kv_blocks = per_group * groups
        return self.kv_blocks

    @property
    def predicted_s(self) -> float:
        """Time that real NPUs would have spent in the steps so far [s]; all of them spend it together."""
        return self.npus[0].counters.predicted_s

    def record_step(self, tokens: int, busy_s: float, predicted_s: float = 0.0) -> None:
        """Counts one forward pass of the group: every NPU is busy for all of it, the tokens are shared out.

        Args:
            tokens: tokens of the whole pass.
            busy_s: time that it really took [s].
            predicted_s: time that real NPUs would take [s].
        Raises: SpecError if a number is negative.
        Effects: the counters of the NPUs grow.
        """
        require_counts(self.name, tokens=tokens, busy_s=busy_s, predicted_s=predicted_s)
        share, odd = divmod(tokens, len(self.npus))
        for place, npu in enumerate(self.npus):  # many of them, every few milliseconds: checked once, above
            npu.counters.add_step(share + (place < odd), busy_s, predicted_s)

    def record_moved(self, plane: Plane, nbytes: int) -> None:
        """Counts bytes that the group sent or received over a plane, shared out over its NPUs.

        Raises: SpecError if the count is negative.
        Effects: the counters of the NPUs grow.
        """
        require_counts(self.name, nbytes=nbytes)
        share, odd = divmod(nbytes, len(self.npus))
        for place, npu in enumerate(self.npus):
            npu.record_moved(plane, share + (place < odd))

    def check(self) -> None:
        """Asserts that every ledger balances and holds the blocks that the instance believes in."""
        for npu in self.npus:
            npu.check()
        holders = [KV_CACHE in ledger.reservations for ledger in self._ledgers]
        assert all(holders) if self.kv_blocks else not any(holders), f"{self.name}: KV blocks and reservations disagree"

    def snapshot(self) -> dict[str, Any]:
        """State as plain values, for a status page or a message.

        Returns: name, npu and die counts, capacity, used and per-name bytes, kv_blocks, and a snapshot per NPU.
        """
        held: dict[str, int] = {}
        for ledger in self._ledgers:
            for who, nbytes in ledger.reservations.items():
                held[who] = held.get(who, 0) + nbytes
        return {
            "name": self.name,
            "npu_count": len(self.npus),
            "die_count": len(self.dies),
            "hbm_capacity_bytes": self.capacity_bytes,
            "hbm_used_bytes": self.used_bytes,
            "reservations": held,
            "kv_blocks": self.kv_blocks,
            "npus": [npu.snapshot() for npu in self.npus],
        }

    def _reserve_all(self, name: str, size_at: Callable[[int], int]) -> None:
        """Reserve on all dies or none: a refusal releases the earlier reservations."""
        done: list[HbmLedger] = []
        try:
            for place, ledger in enumerate(self._ledgers):
                ledger.reserve(name, size_at(place))
                done.append(ledger)
        except (HbmExhaustedError, HbmReservationError):
            for ledger in done:
                ledger.release(name)
            raise
