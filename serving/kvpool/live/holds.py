"""Entries that processes of this node have mapped: they stay in place until the process ends, whatever its links do.

A mapping cannot be taken back from another process, so a hold has no expiry; the life of the process is its lease.
"""

from hardware.ub.process import ProcessStamp
from serving.kvpool.live.server_core import ServerCore


class Holds:
    """Which process holds what. Every method but `dead` is called under the ledger's lock."""

    def __init__(self, core: ServerCore) -> None:
        self._core = core
        self._numbers: dict[ProcessStamp, int] = {}
        self._versions: dict[ProcessStamp, set[int]] = {}

    def hold(self, process: ProcessStamp, versions: tuple[int, ...], now: float) -> bool:
        """Holds all of the entries, or none.

        Returns: False if one of them is not in memory.
        Effects: held until `unhold` or `release`.
        """
        held = self._versions.setdefault(process, set())
        number = self._numbers.setdefault(process, 0) or self._core.new_number()
        self._numbers[process] = number
        new: list[int] = []
        for version in versions:
            if version in held:
                continue
            if not self._core.manager.hold(version, number, now):
                self.unhold(process, tuple(new), now)
                return False
            held.add(version)
            new.append(version)
        return True

    def unhold(self, process: ProcessStamp, versions: tuple[int, ...], now: float) -> None:
        """Ends holds of a process; those that it does not have are passed over.

        Effects: the entries may be evicted again.
        """
        held = self._versions.get(process, set())
        for version in versions:
            if version in held:
                held.discard(version)
                self._core.manager.unhold(version, self._numbers[process], now)
        if not held:
            self._versions.pop(process, None)
            self._numbers.pop(process, None)

    def dead(self) -> list[ProcessStamp]:
        """Holders that do not live any more. Reads /proc, so it is called without the lock."""
        with self._core.changed:
            holders = list(self._versions)
        return [process for process in holders if not process.is_alive()]

    def release(self, process: ProcessStamp, now: float) -> None:
        """Ends everything that a process holds.

        Effects: the entries may be evicted again.
        """
        self.unhold(process, tuple(self._versions.get(process, ())), now)

    @property
    def count(self) -> int:
        """Holds in all."""
        return sum(map(len, self._versions.values()))
