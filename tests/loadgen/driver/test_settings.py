"""Dividing concurrency over workers, and what is refused."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.driver.settings import Mode
from loadgen.errors import UsageError
from tests.loadgen.driver.drive_settings import settings


@given(concurrency=st.integers(1, 300), workers=st.integers(1, 40))
def test_slots_sum_exactly_and_no_worker_is_without(concurrency: int, workers: int) -> None:
    some = settings(mode=Mode.CLOSED, concurrency=concurrency, workers=workers)
    slots = [some.slots_of(worker) or 0 for worker in range(some.workers_used())]
    assert sum(slots) == concurrency
    assert min(slots) >= 1
    assert max(slots) - min(slots) <= 1
    assert [len(some.slot_openings_s(worker)) for worker in range(some.workers_used())] == slots


@given(concurrency=st.integers(1, 300), workers=st.integers(1, 40), ramp_s=st.floats(0, 100))
def test_slots_open_evenly_over_the_ramp(concurrency: int, workers: int, ramp_s: float) -> None:
    some = settings(mode=Mode.CLOSED, concurrency=concurrency, workers=workers, concurrency_ramp_s=ramp_s)
    openings = sorted(opening for worker in range(some.workers_used()) for opening in some.slot_openings_s(worker))
    assert openings == pytest.approx([slot * ramp_s / concurrency for slot in range(concurrency)])


def test_no_cap_means_all_workers_and_no_slots() -> None:
    some = settings(workers=3)
    assert some.workers_used() == 3
    assert some.slots_of(2) is None
    assert some.slot_openings_s(2) == []


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"mode": Mode.CLOSED}, "needs --concurrency"),
        ({"concurrency": 0}, "at least 1"),
        ({"workers": 0}, "at least 1"),
        ({"drain_s": -1.0}, "drain_s"),
        ({"concurrency_ramp_s": -1.0}, "concurrency_ramp_s"),
        ({"request_timeout_s": 0.0}, "request_timeout_s"),
        ({"connect_timeout_s": 0.0}, "connect_timeout_s"),
    ],
)
def test_refuses_what_cannot_be_driven(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        settings(**fields).check()
