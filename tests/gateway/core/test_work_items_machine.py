"""Work is added, claimed, written, cancelled and deleted by several gateways; plain lists define what is stored."""

from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from serving.gateway.core.work_items import LeaseLostError, WorkFullError, WorkItems, WorkLimits

LIMITS = WorkLimits(items=3, size_bytes=20, seconds=30.0, lease_s=5.0)
OWNERS = st.sampled_from(["g1", "g2", "g3"])
IDS = st.sampled_from("abcdef")


@dataclass
class Expected:
    """One item."""

    owner: str
    until: float
    changed: float
    value: bytes
    records: list[bytes] = field(default_factory=list)
    done: bool = False
    cancelled: bool = False

    @property
    def size(self) -> int:
        return len(self.value) + sum(map(len, self.records))


class WorkMachine(RuleBasedStateMachine):
    """One namespace, beside another that nothing here may touch."""

    def __init__(self) -> None:
        super().__init__()
        self.store = WorkItems(LIMITS)
        self.store.add("other", "a", b"other", "g1", 0.0)
        self.store.append("other", "a", "g1", (), 0.0, done=True)
        self.now = 0.0
        self.model: dict[str, Expected] = {}

    def there(self, name: str) -> Expected | None:
        found = self.model.get(name)
        return None if found is None or found.changed + LIMITS.seconds <= self.now else found

    def make_room(self, count: int, size: int, *, must: bool = False) -> bool:
        """Drop as the limits say. Returns: whether there is room."""
        left = {name: one for name in self.model if (one := self.there(name)) is not None}
        done = sorted((one.changed, name) for name, one in left.items() if one.done)
        while len(left) + count > LIMITS.items or sum(one.size for one in left.values()) + size > LIMITS.size_bytes:
            if not done:
                break
            del left[done.pop(0)[1]]
        else:
            self.model = left
            return True
        if must:
            self.model = left
        return must

    @rule(name=IDS, size=st.integers(1, 9), owner=st.sampled_from(["", "g1", "g2"]), first=st.integers(0, 1))
    def add(self, name: str, size: int, owner: str, first: int) -> None:
        self.now += 0.001  # no two at the same time
        if self.there(name) is not None:
            return
        records = [b"r"] * first
        if self.make_room(1, size + first):
            self.store.add("acme", name, bytes(size), owner, self.now, records)
            until = self.now + LIMITS.lease_s if owner else self.now
            self.model[name] = Expected(owner, until, self.now, bytes(size), records)
        else:
            with pytest.raises(WorkFullError):
                self.store.add("acme", name, bytes(size), owner, self.now, records)

    @rule(name=IDS, owner=OWNERS)
    def claim(self, name: str, owner: str) -> None:
        self.now += 0.001
        found, item = self.there(name), self.store.claim("acme", name, owner, self.now)
        free = found is not None and not found.done and (found.until <= self.now or found.owner == owner)
        assert (item is not None) == free
        if free:
            assert found is not None
            found.owner, found.until, found.changed = owner, self.now + LIMITS.lease_s, self.now

    @rule(name=IDS, owner=OWNERS, sizes=st.lists(st.integers(1, 4), max_size=3), done=st.booleans())
    def append(self, name: str, owner: str, sizes: list[int], done: bool) -> None:
        self.now += 0.001
        found, records = self.there(name), [bytes(size) for size in sizes]
        if found is None or found.owner != owner or found.done:
            with pytest.raises(LeaseLostError):
                self.store.append("acme", name, owner, records, self.now, done=done)
        elif not self.make_room(0, sum(sizes), must=done):
            with pytest.raises(WorkFullError):
                self.store.append("acme", name, owner, records, self.now, done=done)
        else:
            given: dict[str, Any] = {"state": "s", "done": done, "at": len(found.records)}
            item = self.store.append("acme", name, owner, records, self.now, **given)
            assert not records or self.store.append("acme", name, owner, records, self.now, **given) == item, "once"
            found.records += records
            found.until, found.changed, found.done = self.now + LIMITS.lease_s, self.now, done
            assert (item.records, item.cancelled, item.state) == (len(found.records), found.cancelled, "s")

    @rule(name=IDS, owner=OWNERS)
    def release(self, name: str, owner: str) -> None:
        found = self.there(name)
        if found is None or found.owner != owner or found.done:
            with pytest.raises(LeaseLostError):
                self.store.release("acme", name, owner, self.now)
        else:
            self.store.release("acme", name, owner, self.now)
            found.until = self.now

    @rule(name=IDS)
    def cancel(self, name: str) -> None:
        found, item = self.there(name), self.store.cancel("acme", name, self.now)
        assert (item is None) == (found is None)
        if found is not None and item is not None:
            found.cancelled |= not found.done
            assert item.cancelled == found.cancelled

    @rule(name=IDS)
    def delete(self, name: str) -> None:
        assert self.store.delete("acme", name, self.now) == (self.there(name) is not None)
        if self.there(name) is not None:
            del self.model[name]

    @rule(seconds=st.floats(0.0, 12.0))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule(name=IDS, start=st.integers(0, 6), most=st.integers(1, 4))
    def read(self, name: str, start: int, most: int) -> None:
        found = self.there(name)
        assert self.store.value("acme", name, self.now) == (None if found is None else found.value)
        expected = [] if found is None else found.records[start : start + most]
        assert self.store.records("acme", name, start, most, self.now) == expected

    @invariant()
    def agrees(self) -> None:
        self.store.check()
        there = {name for name in self.model if self.there(name) is not None}
        assert set(self.store.items("acme", self.now)) == there
        free = {name for name in there if not self.model[name].done and self.model[name].until <= self.now}
        assert {name for one, name in self.store.unowned(self.now) if one == "acme"} == free


TestWork = WorkMachine.TestCase
TestWork.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
