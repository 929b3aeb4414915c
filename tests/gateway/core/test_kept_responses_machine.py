"""Responses are stored, read, deleted and expire; a plain list of all stored responses defines the expected state."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from serving.gateway.core.kept_responses import KeepLimits, KeptEntry, KeptResponses, overdue

LIMITS = KeepLimits(responses=4, size_bytes=20, seconds=10.0)
NAMES = st.sampled_from(["acme", "globex"])
IDS = st.sampled_from("abcdefg")


class KeptMachine(RuleBasedStateMachine):
    """Two namespaces in one store."""

    def __init__(self) -> None:
        super().__init__()
        self.store = KeptResponses(LIMITS)
        self.now = 0.0
        self.model: dict[str, list[tuple[str, bytes, float]]] = {"acme": [], "globex": []}
        """By namespace, oldest first."""

    def there(self, name: str) -> dict[str, bytes]:
        """Responses that the limits keep, the latest first."""
        kept: dict[str, bytes] = {}
        for response_id, value, at in reversed(self.model[name]):
            if at + LIMITS.seconds <= self.now or len(kept) == LIMITS.responses:
                break
            if sum(map(len, kept.values())) + len(value) > LIMITS.size_bytes:
                break
            kept[response_id] = value
        return kept

    @rule(name=NAMES, response_id=IDS, size=st.integers(1, 21))
    def put(self, name: str, response_id: str, size: int) -> None:
        self.now += 0.001  # no two at the same time
        kept = self.store.put(name, response_id, bytes(size), self.now)
        assert kept == (size <= LIMITS.size_bytes)
        if kept:
            left = [one for one in self.model[name] if one[0] != response_id]
            self.model[name] = [*left, (response_id, bytes(size), self.now)]
            self.model[name] = [one for one in self.model[name] if one[0] in self.there(name)]

    @rule(name=NAMES, response_id=IDS)
    def get(self, name: str, response_id: str) -> None:
        assert self.store.get(name, response_id, self.now) == self.there(name).get(response_id)

    @rule(name=NAMES, response_id=IDS)
    def delete(self, name: str, response_id: str) -> None:
        assert self.store.delete(name, response_id, self.now) == (response_id in self.there(name))
        self.model[name] = [one for one in self.model[name] if one[0] != response_id]

    @rule(seconds=st.floats(0.0, 12.0))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @invariant()
    def balanced(self) -> None:
        self.store.check()


TestKept = KeptMachine.TestCase
TestKept.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


def test_nothing_is_kept_where_none_may_be() -> None:
    store = KeptResponses(KeepLimits(responses=0))
    assert not store.put("acme", "a", b"x", 0.0)
    assert store.get("acme", "a", 0.0) is None


def test_a_check_sees_what_is_too_much() -> None:
    store = KeptResponses(LIMITS)
    store.put("acme", "a", b"x", 0.0)
    store._limits = KeepLimits(responses=0)
    with pytest.raises(AssertionError, match="too many"):
        store.check()


def test_the_oldest_are_overdue_first() -> None:
    entries = [KeptEntry(name, at, 8) for name, at in (("a", 3.0), ("b", 1.0), ("c", 2.0))]
    assert overdue(entries, LIMITS, 3.0) == ["b"]
    assert overdue(entries, LIMITS, 12.0) == ["c", "b"]
