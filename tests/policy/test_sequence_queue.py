"""Service order."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.errors import LedgerError
from serving.ids import SequenceId
from serving.policy.request import SamplingParams, SequenceSpec
from serving.policy.sequence import LiveSequence
from serving.policy.sequence_queue import SequenceQueue


def live(arrival: int, priority: int = 0) -> LiveSequence:
    spec = SequenceSpec(SequenceId(f"s{arrival}"), (1,), SamplingParams(), priority=priority)
    return LiveSequence(spec, arrival, 0.0)


@given(st.lists(st.integers(-2, 2), max_size=20), st.data())
def test_priority_then_arrival_whatever_the_order_of_insertion(priorities: list[int], data: st.DataObject) -> None:
    sequences = [live(arrival, priority) for arrival, priority in enumerate(priorities)]
    queue = SequenceQueue()
    for sequence in data.draw(st.permutations(sequences)):
        queue.add(sequence)
    leaving = data.draw(st.lists(st.sampled_from(sequences), unique=True)) if sequences else []
    for sequence in leaving:
        queue.remove(sequence)
    staying = [s for s in sequences if s not in leaving]
    assert list(queue) == sorted(staying, key=lambda s: s.order)
    assert len(queue) == len(staying)


def test_only_what_is_inside_can_leave() -> None:
    queue = SequenceQueue()
    queue.add(live(1))
    for stranger in (live(0), live(1), live(2)):
        with pytest.raises(LedgerError, match="not in this queue"):
            queue.remove(stranger)
