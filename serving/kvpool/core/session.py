"""State of one client's connection to a memory server."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from serving.ids import NodeId
from serving.kvpool.core.entry import EntryView
from serving.kvpool.core.memory_manager import MemoryManager

# Entries that processes of this node have mapped: they stay in place until the process ends, even without its links.
#
# A mapping cannot be taken back from another process, so a hold does not expire; the life of the process is its lease.


class HoldingProcess(Protocol):
    """A process of this node, as a key."""

    def is_alive(self) -> bool:
        """Whether it still runs."""
        ...


class Holds:
    """Holds by process. Called under the ledger's lock.

    Args:
        new_number: gives a number under which the ledger books a process.
    """

    def __init__(self, manager: MemoryManager, new_number: Callable[[], int]) -> None:
        self._manager = manager
        self._new_number = new_number
        self._numbers: dict[HoldingProcess, int] = {}
        self._versions: dict[HoldingProcess, set[int]] = {}

    def hold(self, process: HoldingProcess, versions: tuple[int, ...], now: float) -> bool:
        """Hold all of the entries, or none, until `unhold` or `release`.

        Returns: False if one of them is not in memory.
        """
        held = self._versions.setdefault(process, set())
        number = self._numbers.setdefault(process, 0) or self._new_number()
        self._numbers[process] = number
        new: list[int] = []
        for version in versions:
            if version in held:
                continue
            if not self._manager.hold(version, number, now):
                self.unhold(process, tuple(new), now)
                return False
            held.add(version)
            new.append(version)
        return True

    def unhold(self, process: HoldingProcess, versions: tuple[int, ...], now: float) -> None:
        """End holds of a process; unknown ones are ignored. The entries may be evicted again."""
        held = self._versions.get(process, set())
        for version in versions:
            if version in held:
                held.discard(version)
                self._manager.unhold(version, self._numbers[process], now)
        if not held:
            self._versions.pop(process, None)
            self._numbers.pop(process, None)

    def holders(self) -> list[HoldingProcess]:
        """Processes with holds."""
        return list(self._versions)

    def release(self, process: HoldingProcess, now: float) -> None:
        """End all holds of a process. The entries may be evicted again."""
        self.unhold(process, tuple(self._versions.get(process, ())), now)

    @property
    def count(self) -> int:
        """Total number of holds."""
        return sum(map(len, self._versions.values()))


# State of one client's connection to a memory server.


@dataclass(frozen=True, slots=True)
class Writing:
    """A reservation: its place and its start, so that bytes that arrive too late are not written."""

    offset: int
    nbytes: int
    since: float
    model: str | None


@dataclass(slots=True)
class Session:
    """State of a client.

    Args:
        client: number under which its leases and reservations are booked.
        process: None if this server cannot see whether it lives: another node, or another container.
        writing: by version, reserved and not yet committed.
        listing: what the pages of its present listing are cut from.
        written: which pieces of the `Write` under way have a place.
    """

    client: int
    name: str
    node: NodeId
    process: HoldingProcess | None
    writing: dict[int, Writing] = field(default_factory=dict)
    listing: list[EntryView] = field(default_factory=list)
    written: tuple[bool, ...] = ()
