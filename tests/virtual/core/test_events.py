"""Virtual time: a total order that never runs backwards."""

from hypothesis import given
from hypothesis import strategies as st

from serving.virtual.event_queue import EventQueue


@given(st.lists(st.floats(0.0, 100.0), max_size=50))
def test_things_happen_in_order_of_time_then_of_asking(times: list[float]) -> None:
    queue = EventQueue()
    seen: list[object] = []
    for number, when in enumerate(times):
        queue.at(when, seen.append, (when, number))
    queue.run()
    assert seen == sorted((when, number) for number, when in enumerate(times))
    assert queue.handled == len(times)
    assert len(queue) == 0


def test_a_run_ends_where_it_is_told_to_and_the_past_happens_now() -> None:
    queue = EventQueue()
    seen: list[object] = []
    queue.at(5.0, lambda _: queue.at(1.0, lambda _: seen.append(queue.now)))
    queue.run()
    assert seen == [5.0]
    queue = EventQueue()
    seen.clear()
    for when in (1.0, 2.0, 3.0, 4.0):
        queue.at(when, seen.append, when)
    queue.run(until=2.0)
    assert seen == [1.0, 2.0]
    assert queue.next_at == 3.0
    queue.run(at_most=1)
    assert seen == [1.0, 2.0, 3.0]
