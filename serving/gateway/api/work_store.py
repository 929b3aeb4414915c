"""Stores of durable work: a port with two implementations, this process's memory and a Redis that gateways share."""

from collections.abc import Callable, Sequence
from typing import Protocol

from serving.gateway.core.work_items import WorkItem, WorkItems, WorkLimits

PAGE = 1000
"""Records read at once, unless the reader specifies another number."""


class WorkStore(Protocol):
    """Work items of one kind by namespace and id; see `core.work_items`. Every call may raise UnavailableError."""

    limits: WorkLimits
    place: str
    """Description for clients that request work which is not stored."""
    shared: bool
    """Whether other gateways can continue the work."""

    async def add(self, namespace: str, name: str, value: bytes, owner: str, records: Sequence[bytes] = ()) -> WorkItem:
        """Store a new item, with its first records.

        Args:
            owner: the gateway that runs it; empty = anybody may claim it at once.
        Raises: WorkFullError.
        """
        ...

    async def items(self, namespace: str) -> dict[str, WorkItem]:
        """All items of a namespace, by id."""
        ...

    async def get(self, namespace: str, name: str) -> WorkItem | None:
        """An item's state; None if it is not, or no longer, stored."""
        ...

    async def value(self, namespace: str, name: str) -> bytes | None:
        """An item's value; None if it is not, or no longer, stored."""
        ...

    async def records(self, namespace: str, name: str, start: int, most: int = PAGE) -> list[bytes]:
        """At most `most` records from number `start` on."""
        ...

    async def claim(self, namespace: str, name: str, owner: str) -> WorkItem | None:
        """Take over an item that no gateway runs. Returns: None if it is done, leased or not stored."""
        ...

    async def append(
        self,
        namespace: str,
        name: str,
        owner: str,
        records: Sequence[bytes] = (),
        *,
        state: str | None = None,
        done: bool = False,
        at: int | None = None,
    ) -> WorkItem:
        """Append records, all or none, and extend the lease.

        Args:
            state: new state of the item; None = unchanged.
            done: no further record follows; these are stored even if there is no room.
            at: number of the first record, see `core.work_items.appended`.
        Returns: the item; its owner has to look whether it was cancelled.
        Raises: LeaseLostError, WorkFullError.
        """
        ...

    async def release(self, namespace: str, name: str, owner: str) -> None:
        """Give up the lease, as its owner stops. Raises: LeaseLostError."""
        ...

    async def cancel(self, namespace: str, name: str) -> WorkItem | None:
        """Ask the owner to end an item. Returns: the item; None if it is not stored."""
        ...

    async def delete(self, namespace: str, name: str) -> bool:
        """Delete an item with its records; a running owner loses its lease. Returns: whether it was stored."""
        ...

    async def unowned(self) -> list[tuple[str, str]]:
        """Namespaces and ids of items whose lease has run out."""
        ...


class MemoryWorkStore:
    """A `WorkStore` of one gateway; a restart empties it."""

    place = "in the memory of the gateway that accepted it"
    shared = False

    def __init__(self, limits: WorkLimits, clock: Callable[[], float]) -> None:
        self.limits = limits
        self._work = WorkItems(limits)
        self._clock = clock

    async def add(self, namespace: str, name: str, value: bytes, owner: str, records: Sequence[bytes] = ()) -> WorkItem:
        """See `WorkStore.add`."""
        return self._work.add(namespace, name, value, owner, self._clock(), records)

    async def items(self, namespace: str) -> dict[str, WorkItem]:
        """See `WorkStore.items`."""
        return self._work.items(namespace, self._clock())

    async def get(self, namespace: str, name: str) -> WorkItem | None:
        """See `WorkStore.get`."""
        return self._work.items(namespace, self._clock()).get(name)

    async def value(self, namespace: str, name: str) -> bytes | None:
        """See `WorkStore.value`."""
        return self._work.value(namespace, name, self._clock())

    async def records(self, namespace: str, name: str, start: int, most: int = PAGE) -> list[bytes]:
        """See `WorkStore.records`."""
        return self._work.records(namespace, name, start, most, self._clock())

    async def claim(self, namespace: str, name: str, owner: str) -> WorkItem | None:
        """See `WorkStore.claim`."""
        return self._work.claim(namespace, name, owner, self._clock())

    async def append(
        self,
        namespace: str,
        name: str,
        owner: str,
        records: Sequence[bytes] = (),
        *,
        state: str | None = None,
        done: bool = False,
        at: int | None = None,
    ) -> WorkItem:
        """See `WorkStore.append`."""
        return self._work.append(namespace, name, owner, records, self._clock(), state=state, done=done, at=at)

    async def release(self, namespace: str, name: str, owner: str) -> None:
        """See `WorkStore.release`."""
        self._work.release(namespace, name, owner, self._clock())

    async def cancel(self, namespace: str, name: str) -> WorkItem | None:
        """See `WorkStore.cancel`."""
        return self._work.cancel(namespace, name, self._clock())

    async def delete(self, namespace: str, name: str) -> bool:
        """See `WorkStore.delete`."""
        return self._work.delete(namespace, name, self._clock())

    async def unowned(self) -> list[tuple[str, str]]:
        """See `WorkStore.unowned`."""
        return self._work.unowned(self._clock())
