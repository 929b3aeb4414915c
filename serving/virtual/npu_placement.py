"""Placement of instances on the NPUs of a supernode: the first contiguous free ones, else the first free ones."""

from collections import Counter
from collections.abc import Mapping, Sequence

from hardware.topology import DieId, NpuId, Topology


class NpuPlacement:
    """The NPUs of one supernode: free, taken, or broken."""

    def __init__(self, topology: Topology, npus: int) -> None:
        """
        Args:
            npus: number of usable NPUs, counted from the first one of the supernode.
        """
        self._ids = list(topology.npu_ids())[:npus]
        self._free = [True] * len(self._ids)
        self._broken: Counter[int] = Counter()
        """Number of active faults of each NPU, by index; an NPU works again when all of them are over."""
        self._dies = topology.spec.node.npu.dies
        self._by_host: Mapping[int, int] | None = None

    @property
    def npus(self) -> Sequence[NpuId]:
        """All usable NPUs, in order."""
        return self._ids

    @property
    def total(self) -> int:
        """Number of NPUs that are not broken."""
        return len(self._ids) - len(self._broken)

    @property
    def by_host(self) -> Mapping[int, int]:
        """NPUs that are not broken, by host; the same object until that changes."""
        if self._by_host is None:
            self._by_host = Counter(npu.node for place, npu in enumerate(self._ids) if place not in self._broken)
        return self._by_host

    @property
    def idle(self) -> int:
        """Number of NPUs that are free and not broken."""
        return sum(self._free) - sum(self._free[place] for place in self._broken)

    def take(self, count: int) -> tuple[NpuId, ...] | None:
        """Take NPUs for an instance. Returns: None if too few are free."""
        usable = [place for place, free in enumerate(self._free) if free and place not in self._broken]
        if len(usable) < count:
            return None
        start = next((i for i in range(len(usable) - count + 1) if usable[i + count - 1] - usable[i] == count - 1), 0)
        chosen = usable[start : start + count]
        for place in chosen:
            self._free[place] = False
        return tuple(self._ids[place] for place in chosen)

    def give_back(self, npus: tuple[NpuId, ...]) -> None:
        """Free the NPUs of an instance."""
        for npu in npus:
            self._free[self._place(npu)] = True

    def work(self, npus: tuple[NpuId, ...]) -> bool:
        """Whether none of these NPUs is broken."""
        return not any(self._place(npu) in self._broken for npu in npus)

    def fail(self, npu: NpuId) -> None:
        """Take an NPU out of use until `repair` was called once for each failure."""
        self._broken[self._place(npu)] += 1
        self._by_host = None

    def repair(self, npu: NpuId) -> None:
        """End one fault of an NPU."""
        place = self._place(npu)
        self._broken[place] -= 1
        self._by_host = None
        if not self._broken[place]:
            del self._broken[place]

    def dies_of(self, npus: tuple[NpuId, ...]) -> tuple[DieId, ...]:
        """Dies in order of rank."""
        return tuple(DieId(npu, die) for npu in npus for die in range(self._dies))

    def _place(self, npu: NpuId) -> int:
        return self._ids.index(npu)
