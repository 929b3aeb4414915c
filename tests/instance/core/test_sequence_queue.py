"""Service order."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.errors import LedgerError
from serving.ids import SequenceId
from serving.instance.core.sequence import LiveSequence, turn_of
from serving.instance.core.waiting_queue import SequenceQueue
from serving.values.sequence import SamplingParams, SequenceSpec


def live(arrival: int, priority: int = 0) -> LiveSequence:
    spec = SequenceSpec(SequenceId(f"s{arrival}"), (1,), SamplingParams(), priority=priority)
    return LiveSequence(spec, (0.0, arrival), 0.0)


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


@given(st.lists(st.tuples(st.floats(0, 10), st.integers(1, 5000)), min_size=1, max_size=20), st.floats(0, 5))
def test_a_prompt_is_passed_by_shorter_ones_and_not_for_ever(prompts: list[tuple[float, int]], delay_s: float) -> None:
    came: dict[SequenceId, tuple[float, int]] = {}
    queue = SequenceQueue()
    for number, (now, length) in enumerate(sorted(prompts)):
        one = SequenceSpec(SequenceId(f"s{number}"), (1,) * length, SamplingParams())
        queue.add(LiveSequence(one, turn_of(one, now, number, delay_s, held=False), now))
        came[one.sequence_id] = (now, length)
    order = [came[sequence.sequence_id] for sequence in queue]
    for at, (now, length) in enumerate(order):
        for other, shorter in order[:at]:
            assert other <= now or length - shorter >= (other - now) / delay_s * 1000 * (1 - 1e-9)


def test_a_stream_that_resumes_is_not_delayed() -> None:
    resumed = SequenceSpec(SequenceId("a"), (1,) * 1000, SamplingParams(), output=(7,))
    assert turn_of(resumed, 3.0, 5, 0.1, held=False) == (3.0, 5)


def test_only_what_is_inside_can_leave() -> None:
    queue = SequenceQueue()
    queue.add(live(1))
    for stranger in (live(0), live(1), live(2)):
        with pytest.raises(LedgerError, match="not in this queue"):
            queue.remove(stranger)
