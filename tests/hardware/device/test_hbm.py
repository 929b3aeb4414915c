"""The HBM ledger: a state machine over every operation, and each refusal."""

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from hardware.device.hbm import HbmLedger
from hardware.errors import HbmExhaustedError, HbmReservationError, SpecError
from hardware.units import MIB

CAPACITY = 1000
names = st.sampled_from(["weights", "workspace", "kv_cache", "draft"])
sizes = st.integers(min_value=0, max_value=CAPACITY + 200)


class LedgerMachine(RuleBasedStateMachine):
    """Compares the ledger with a plain dictionary."""

    def __init__(self) -> None:
        super().__init__()
        self.ledger = HbmLedger(CAPACITY)
        self.held: dict[str, int] = {}
        self.most = 0

    def free(self) -> int:
        return CAPACITY - sum(self.held.values())

    @rule(name=names, nbytes=sizes)
    def reserve(self, name: str, nbytes: int) -> None:
        if name in self.held:
            with pytest.raises(HbmReservationError):
                self.ledger.reserve(name, nbytes)
        elif nbytes > self.free():
            with pytest.raises(HbmExhaustedError):
                self.ledger.reserve(name, nbytes)
        else:
            self.ledger.reserve(name, nbytes)
            self.held[name] = nbytes

    @rule(name=names)
    def release(self, name: str) -> None:
        if name in self.held:
            assert self.ledger.release(name) == self.held.pop(name)
        else:
            with pytest.raises(HbmReservationError):
                self.ledger.release(name)

    @precondition(lambda self: self.held)
    @rule()
    def release_all(self) -> None:
        for name in list(self.held):
            self.ledger.release(name)
        self.held.clear()
        assert self.ledger.used_bytes == 0

    @invariant()
    def agrees_with_the_model(self) -> None:
        self.ledger.check()
        self.most = max(self.most, sum(self.held.values()))
        assert dict(self.ledger.reservations) == self.held
        assert self.ledger.used_bytes == sum(self.held.values())
        assert self.ledger.free_bytes == self.free()
        assert self.ledger.high_water_bytes == self.most
        assert self.ledger.capacity_bytes == CAPACITY


TestLedgerMachine = LedgerMachine.TestCase


def test_refusals_say_what_was_asked_and_who_holds() -> None:
    ledger = HbmLedger(128 * MIB, "HBM of n0.npu0.die1")
    ledger.reserve("weights", 96 * MIB)
    with pytest.raises(HbmExhaustedError) as caught:
        ledger.reserve("kv_cache", 64 * MIB)
    for part in ("n0.npu0.die1", "'kv_cache'", "64 MiB", "32 MiB", "weights 96 MiB", "take more NPUs"):
        assert part in str(caught.value)
    ledger = HbmLedger(10)
    with pytest.raises(HbmReservationError, match="cannot be negative"):
        ledger.reserve("weights", -1)
    ledger.reserve("weights", 4)
    with pytest.raises(HbmReservationError, match="already holds 4 B"):
        ledger.reserve("weights", 1)
    with pytest.raises(HbmReservationError, match="holders: weights"):
        ledger.release("kv_cache")
    assert dict(ledger.reservations) == {"weights": 4}
    ledger = HbmLedger(10)
    with pytest.raises(TypeError):
        ledger.reservations["x"] = 1  # type: ignore[index]


@pytest.mark.parametrize("capacity", [0, -5])
def test_a_ledger_needs_a_capacity(capacity: int) -> None:
    with pytest.raises(SpecError, match="above zero"):
        HbmLedger(capacity)


def test_check_finds_books_that_do_not_balance() -> None:
    ledger = HbmLedger(10)
    ledger.reserve("weights", 4)
    ledger._held["weights"] = 5
    with pytest.raises(AssertionError, match="not the sum"):
        ledger.check()
