"""Durable work: requests that gateways run without their clients, each by one gateway at a time.

    item      the request (its value), a list of records numbered from 0, and a lease
    lease     the gateway that runs it, and until when; each write of the owner extends it
    records   results so far, appended by the owner only; anybody reads them from a number on

When a lease runs out, any gateway may claim the item and continue it after its last record. An old owner that returns
cannot write: every write names its owner.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec
from msgspec.structs import replace

from serving.errors import OverloadedError

RETRY_AFTER_S = 5.0
"""When a client may try again to add work."""


@dataclass(frozen=True, slots=True)
class WorkLimits:
    """Limits of each namespace.

    Args:
        items: number of items. A new one replaces the oldest that is done, and is refused if none is.
        size_bytes: of all values and records together.
        seconds: lifetime of an item after its last change.
        lease_s: how long an item stays with an owner that does not write.
    """

    items: int = 100
    size_bytes: int = 64 << 20
    seconds: float = 86_400.0
    lease_s: float = 10.0


class WorkFullError(OverloadedError):
    """A namespace has as much work as its limits allow, and none of it is done."""

    def __init__(self, message: str) -> None:
        super().__init__(message, retry_after_s=RETRY_AFTER_S)


class LeaseLostError(Exception):
    """An item now belongs to another gateway, is done, or was deleted: its former owner must stop."""


class WorkItem(msgspec.Struct, frozen=True):
    """State of one item.

    Args:
        created, changed: times [s].
        size: bytes of value and records.
        records: number of records.
        owner: the gateway that runs it.
        until: end of its lease [s].
        claims: times that it was claimed since its last record, without those after which it was released.
        state: short text that the owner set last; the kind of work defines it.
        cancelled: its early end was requested; its owner has to end it.
        done: no further record follows.
    """

    created: float
    changed: float
    size: int
    owner: str
    until: float
    records: int = 0
    claims: int = 0
    state: str = ""
    cancelled: bool = False
    done: bool = False

    def expired(self, limits: WorkLimits, now: float) -> bool:
        """Whether it has reached its lifetime."""
        return self.changed + limits.seconds <= now

    def claimable(self, now: float) -> bool:
        """Whether no gateway runs it."""
        return not self.done and self.until <= now


def added(owner: str, value: bytes, records: Sequence[bytes], limits: WorkLimits, now: float) -> WorkItem:
    """A new item, run by the gateway that accepted it; with no owner anybody may claim it at once."""
    size = len(value) + sum(map(len, records))
    return WorkItem(now, now, size, owner, now + limits.lease_s if owner else now, len(records))


def claimed(item: WorkItem, owner: str, limits: WorkLimits, now: float) -> WorkItem | None:
    """The item with a new owner; None if it is done or another gateway's lease has not run out."""
    if not (item.claimable(now) or (item.owner == owner and not item.done)):
        return None
    return replace(item, owner=owner, until=now + limits.lease_s, changed=now, claims=item.claims + 1)


def appended(
    item: WorkItem,
    owner: str,
    records: Sequence[bytes],
    limits: WorkLimits,
    now: float,
    *,
    state: str | None = None,
    done: bool = False,
    at: int | None = None,
) -> WorkItem:
    """The item after a write of its owner, which also extends the lease.

    Args:
        records: further records; none only extends the lease.
        state: None = unchanged.
        at: number of the first of these records. A write that is repeated, because its outcome is unknown, then has no
            further effect if it was made before.
    Returns: `item` itself if the write was made before.
    Raises: LeaseLostError.
    """
    if at is not None and records and item.owner == owner and item.records != at:
        if item.records == at + len(records):
            return item
        raise LeaseLostError(f"this work has {item.records} records, not the {at} that its owner knows")
    if item.owner != owner or item.done:
        raise LeaseLostError(f"this work is {'done' if item.done else 'with another gateway'}")
    return replace(
        item,
        changed=now,
        until=now + limits.lease_s,
        size=item.size + sum(map(len, records)),
        records=item.records + len(records),
        claims=0 if records else item.claims,
        state=item.state if state is None else state,
        done=done,
    )


def released(item: WorkItem, owner: str, now: float) -> WorkItem:
    """The item without a lease, as its owner stops: another gateway may claim it at once.

    Raises: LeaseLostError.
    """
    if item.owner != owner or item.done:
        raise LeaseLostError("this work is with another gateway, or done")
    return replace(item, until=now, claims=max(0, item.claims - 1))


def displaced(
    items: Mapping[str, WorkItem], limits: WorkLimits, now: float, *, count: int, size: int, must: bool = False
) -> list[str]:
    """Ids in one namespace to delete: the expired, and the oldest that are done until there is room.

    Args:
        count, size: items and bytes to make room for.
        must: the last records of an item, which are stored even if there is no room.
    Raises: WorkFullError if there is no room even then.
    """
    gone = [name for name, item in items.items() if item.expired(limits, now)]
    left = {name: item for name, item in items.items() if name not in gone}
    done = sorted((item.changed, name) for name, item in left.items() if item.done)
    total = sum(item.size for item in left.values())
    for _, name in [*done, (0.0, "")]:
        if len(left) + count <= limits.items and total + size <= limits.size_bytes:
            return gone
        if name:
            gone.append(name)
            total -= left.pop(name).size
    if must:
        return gone
    if total + size > limits.size_bytes:
        raise WorkFullError(f"work in progress may store {limits.size_bytes} bytes; wait until some is done")
    raise WorkFullError(f"{limits.items} are in progress, as many as may be; wait until one is done, or cancel one")


class WorkItems:
    """Work in the memory of one process."""

    def __init__(self, limits: WorkLimits) -> None:
        self._limits = limits
        self._kept: dict[str, dict[str, WorkItem]] = {}
        self._values: dict[tuple[str, str], bytes] = {}
        self._records: dict[tuple[str, str], list[bytes]] = {}

    def add(
        self, namespace: str, name: str, value: bytes, owner: str, now: float, records: Sequence[bytes] = ()
    ) -> WorkItem:
        """Add an item. Raises: WorkFullError."""
        item = added(owner, value, records, self._limits, now)
        self._make_room(namespace, now, count=1, size=item.size)
        self._kept.setdefault(namespace, {})[name] = item
        self._values[namespace, name], self._records[namespace, name] = value, list(records)
        return item

    def items(self, namespace: str, now: float) -> dict[str, WorkItem]:
        """All items of a namespace, by id."""
        kept = self._kept.get(namespace, {})
        return {name: item for name, item in kept.items() if not item.expired(self._limits, now)}

    def value(self, namespace: str, name: str, now: float) -> bytes | None:
        """An item's value; None if there is no such item."""
        return self._values[namespace, name] if name in self.items(namespace, now) else None

    def records(self, namespace: str, name: str, start: int, most: int, now: float) -> list[bytes]:
        """At most `most` records from number `start` on."""
        known = name in self.items(namespace, now)
        return self._records[namespace, name][start : start + most] if known else []

    def claim(self, namespace: str, name: str, owner: str, now: float) -> WorkItem | None:
        """See `claimed`; None also if there is no such item."""
        item = self.items(namespace, now).get(name)
        taken = None if item is None else claimed(item, owner, self._limits, now)
        if taken is not None:
            self._kept[namespace][name] = taken
        return taken

    def append(
        self,
        namespace: str,
        name: str,
        owner: str,
        records: Sequence[bytes],
        now: float,
        *,
        state: str | None = None,
        done: bool = False,
        at: int | None = None,
    ) -> WorkItem:
        """See `appended`. Raises: LeaseLostError, WorkFullError."""
        item = self._known(namespace, name, now)
        after = appended(item, owner, records, self._limits, now, state=state, done=done, at=at)
        if after is item:
            return item
        self._make_room(namespace, now, count=0, size=after.size - item.size, must=done)
        self._records[namespace, name] += records
        self._kept[namespace][name] = after
        return after

    def release(self, namespace: str, name: str, owner: str, now: float) -> None:
        """See `released`. Raises: LeaseLostError."""
        self._kept[namespace][name] = released(self._known(namespace, name, now), owner, now)

    def cancel(self, namespace: str, name: str, now: float) -> WorkItem | None:
        """Request the end of an item. Returns: the item; None if there is none."""
        item = self.items(namespace, now).get(name)
        if item is not None and not item.done:
            item = self._kept[namespace][name] = replace(item, cancelled=True)
        return item

    def delete(self, namespace: str, name: str, now: float) -> bool:
        """Delete an item. Returns: whether it was there."""
        known = name in self.items(namespace, now)
        if known:
            self._remove(namespace, name)
        return known

    def unowned(self, now: float) -> list[tuple[str, str]]:
        """Namespaces and ids of items that no gateway runs."""
        found = [(item, one, name) for one in self._kept for name, item in self.items(one, now).items()]
        return [(one, name) for item, one, name in found if item.claimable(now)]

    def check(self) -> None:
        """Raises: AssertionError if the limits are exceeded, or the parts of an item disagree."""
        for namespace, own in self._kept.items():
            assert own, "an empty namespace is not remembered"
            assert len(own) <= self._limits.items, "too many"
            running = sum(item.size for item in own.values() if not item.done)
            assert running <= self._limits.size_bytes, "too large, and not only by last records"
            for name, item in own.items():
                value, records = self._values[namespace, name], self._records[namespace, name]
                assert item.size == len(value) + sum(map(len, records)), "sizes are those of the values"
                assert item.records == len(records), "records are counted"
        assert len(self._values) == len(self._records) == sum(map(len, self._kept.values())), "nothing is left over"

    def _known(self, namespace: str, name: str, now: float) -> WorkItem:
        item = self.items(namespace, now).get(name)
        if item is None:
            raise LeaseLostError("this work was deleted")
        return item

    def _make_room(self, namespace: str, now: float, *, count: int, size: int, must: bool = False) -> None:
        kept = self._kept.get(namespace, {})
        for name in displaced(kept, self._limits, now, count=count, size=size, must=must):
            self._remove(namespace, name)

    def _remove(self, namespace: str, name: str) -> None:
        own = self._kept[namespace]
        del own[name], self._values[namespace, name], self._records[namespace, name]
        if not own:
            del self._kept[namespace]
