"""A memory server without memory: the ledger's driver for tests, with pages and files that hold one number each."""

from collections import deque
from typing import Any

from serving.ids import BlockHash
from serving.kvpool.core.entry import Found, GrantStatus, LoadFromSsd, Order, Space, Spill, Unlink
from serving.kvpool.core.memory_manager import ManagerSettings, MemoryManager

PAGE = 4096
Name = tuple[Space, BlockHash]


class LedgerDriver:
    """Executes commands: those of one name in order, those of different names in any order.

    Attributes:
        memory: page of the segment -> content, a number that represents the bytes.
        files: name -> (content, bytes).
    """

    def __init__(self, manager: MemoryManager, files: dict[Name, tuple[int, int]] | None = None) -> None:
        self.manager = manager
        self.memory: dict[int, int] = {}
        self.files = files if files is not None else {}
        self.waiting: dict[Name, deque[Order]] = {}

    def write(self, offset: int, nbytes: int, content: int) -> None:
        for page in range(offset // PAGE, -(-(offset + nbytes) // PAGE)):
            self.memory[page] = content

    def read(self, offset: int, nbytes: int) -> set[int | None]:
        """Contents of the pages; a single number if they are consistent."""
        return {self.memory.get(page) for page in range(offset // PAGE, -(-(offset + nbytes) // PAGE))}

    def holds(self, found: Found) -> bool:
        return self.read(found.offset, found.nbytes) == {found.checksum}

    def collect(self) -> None:
        for order in self.manager.take_orders():
            self.waiting.setdefault((order.space, order.hash), deque()).append(order)

    def names(self) -> list[Name]:
        """Names with pending commands."""
        self.collect()
        return list(self.waiting)

    def do_one(self, name: Name, ok: bool, now: float) -> None:
        """Execute the next command of a name.

        Args:
            ok: False = the disk fails.
        """
        orders = self.waiting[name]
        order = orders.popleft()
        if not orders:
            del self.waiting[name]
        match order:
            case Unlink():
                self.files.pop(name, None)
            case Spill():
                assert self.read(order.offset, order.nbytes) == {order.checksum}, "bytes changed under a spill"
                assert name not in self.files, "a spill over a file that is there"
                if ok:
                    self.files[name] = (order.checksum, order.nbytes)
                self.manager.spilled(order.version, ok, now)
            case LoadFromSsd():
                if ok and name in self.files:
                    assert self.files[name] == (order.checksum, order.nbytes), "another entry's file"
                    self.write(order.offset, order.nbytes, order.checksum)
                self.manager.loaded(order.version, ok and name in self.files, now)

    def do_all(self, now: float, ok: bool = True) -> None:
        while names := self.names():
            for name in names:
                self.do_one(name, ok, now)


SPACE = Space("tenant", "layout")


def small_manager(slabs: int = 2, slab_pages: int = 4, first_version: int = 1, **settings: Any) -> MemoryManager:
    """A server of a few pages, without water marks by default."""
    usual: dict[str, Any] = {"high_water": 1.0, "low_water": 1.0}
    sizes = {"capacity_bytes": slabs * slab_pages * PAGE, "slab_bytes": slab_pages * PAGE}
    return MemoryManager(ManagerSettings(**{**sizes, **usual, **settings}), first_version)


def named(index: int) -> BlockHash:
    return BlockHash(index.to_bytes(16, "little"))


def put(manager: MemoryManager, *indices: int, now: float = 0.0, pages: int = 1, **where: Any) -> list[int]:
    """Store entries; their checksum is their index. Returns: their versions. All must be granted."""
    space = where.pop("space", SPACE)
    grants = manager.reserve(space, [(named(i), pages * PAGE) for i in indices], 1, now, **where)
    assert [grant.status for grant in grants] == [GrantStatus.GRANTED] * len(indices)
    assert all(manager.commit(g.version, i, 1, now) for g, i in zip(grants, indices, strict=True))
    return [grant.version for grant in grants]


def try_reserve(manager: MemoryManager, *indices: int, now: float = 0.0, pages: int = 1, **where: Any) -> list[str]:
    """Outcome of requests to write, as text."""
    space = where.pop("space", SPACE)
    items = [(named(i), pages * PAGE) for i in indices]
    return [grant.status.value for grant in manager.reserve(space, items, 1, now, **where)]


def tiers(manager: MemoryManager) -> dict[int, str]:
    """Index -> place of the entry: `dram`, `ssd` or `both`."""
    return {
        int.from_bytes(view.hash, "little"): "both"
        if view.in_dram and view.on_ssd
        else "dram"
        if view.in_dram
        else "ssd"
        for view in manager.entries()
    }


def spills(manager: MemoryManager) -> list[int]:
    """Versions of the ordered spills; asserts that no other command was issued."""
    orders = manager.take_orders()
    assert all(isinstance(order, Spill) for order in orders)
    return [order.version for order in orders if isinstance(order, Spill)]


def spill_all(manager: MemoryManager, now: float = 0.0) -> None:
    for order in manager.take_orders():
        if isinstance(order, Spill):
            manager.spilled(order.version, True, now)


def with_ssd(**settings: Any) -> MemoryManager:
    """Four pages of DRAM, a hundred of SSD."""
    return small_manager(**{"slabs": 1, "ssd_bytes": 100 * PAGE, **settings})
