"""Entries that processes of this node have mapped: they stay in place until the process ends, even without its links.

A mapping cannot be taken back from another process, so a hold does not expire; the life of the process is its lease.
"""

from collections.abc import Callable
from typing import Protocol

from serving.kvpool.core.memory_manager import MemoryManager


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
