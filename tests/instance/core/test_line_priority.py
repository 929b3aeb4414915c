"""Priority in an instance that serves several keys: it orders the sequences of one key, and never those of another."""

import math
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from serving.ids import SequenceId
from serving.instance.core.sequence import LiveSequence, Order
from serving.instance.core.waiting_queue import SequenceQueue, WaitingQueue
from serving.values.sequence import BACKGROUND_PRIORITY, SamplingParams, SequenceSpec


def live(arrival: int, line: int, priority: int = 0, turn: float = 0.0, tokens: int = 1) -> LiveSequence:
    spec = SequenceSpec(SequenceId(f"{line}.{arrival}"), (1,) * tokens, SamplingParams(), priority=priority, line=line)
    return LiveSequence(spec, (turn, arrival), 0.0)


def filled(*sequences: LiveSequence) -> SequenceQueue:
    queue = SequenceQueue()
    for sequence in sequences:
        queue.add(sequence)
    return queue


def names(queue: SequenceQueue) -> list[str]:
    return [sequence.sequence_id for sequence in queue]


def test_a_key_orders_its_own_and_passes_nobody_elses() -> None:
    queue = filled(live(0, 1, 5), live(1, 2), live(2, 1, 0), live(3, 2), live(4, 1, -5))
    assert names(queue) == ["1.4", "2.1", "1.2", "2.3", "1.0"]


def test_an_urgent_request_gains_nothing_where_its_key_has_no_other() -> None:
    assert names(filled(live(0, 2), live(1, 3), live(2, 1, -100))) == ["2.0", "3.1", "1.2"]


def test_one_key_alone_is_ordered_as_ever() -> None:
    assert names(filled(live(0, 0, 5), live(1, 0), live(2, 0, -5))) == ["0.2", "0.1", "0.0"]


def test_equal_priorities_keep_their_order() -> None:
    queue = filled(live(0, 1, 1), live(1, 1, 1), live(2, 1), live(3, 1), live(4, 1, 1))
    assert names(queue) == ["1.2", "1.3", "1.0", "1.1", "1.4"]


def test_what_has_its_blocks_here_goes_first_whatever_its_priority() -> None:
    queue = filled(live(0, 1, -5), live(1, 2), live(2, 1, 9, turn=-math.inf), live(3, 1, -9))
    assert names(queue) == ["1.2", "1.3", "2.1", "1.0"]


def test_one_that_comes_back_takes_its_place_again() -> None:
    """Like a preempted one, with its earlier turn."""
    queue = filled(worse := live(0, 1, 3), live(1, 2), better := live(2, 1))
    queue.remove(better)
    queue.add(better)
    assert names(queue) == ["1.2", "2.1", "1.0"]
    queue.remove(worse)
    queue.add(live(9, 1, -1))
    assert names(queue) == ["1.9", "2.1", "1.2"]


@given(
    st.lists(st.tuples(st.integers(1, 3), st.integers(-2, 2), st.booleans()), max_size=24),
    st.randoms(use_true_random=False),
)
def test_whatever_comes_and_goes(moves: list[tuple[int, int, bool]], random: Random) -> None:
    """Each key's queue is in the order of its priorities, and turns follow arrival, queue by queue."""
    queue = SequenceQueue()
    turns: dict[int, list[Order]] = {1: [], 2: [], 3: []}
    for arrival, (line, priority, leaves) in enumerate(moves):
        if leaves and len(queue):
            gone = random.choice(queue.items)
            queue.remove(gone)
            turns[gone.spec.line].remove(gone.order)
            continue
        newcomer = live(arrival, line, priority)
        turns[line].append(newcomer.order)
        queue.add(newcomer)
        assert [one.order for one in queue] == sorted(one.order for one in queue)
        for key, own in turns.items():
            members = [one for one in queue if one.spec.line == key]
            assert [one.order for one in members] == sorted(own)
            assert [one.spec.priority for one in members] == sorted(one.spec.priority for one in members)


def waiting(*sequences: LiveSequence) -> WaitingQueue:
    queue = WaitingQueue()
    for sequence in sequences:
        queue.enter(sequence)
    return queue


def test_beside_a_hundred_of_another_key_the_first_of_a_key_is_next_but_one() -> None:
    queue = waiting(*(live(arrival, 1, tokens=9) for arrival in range(100)), live(100, 2), live(101, 2))
    assert names(queue)[:3] == ["1.0", "2.100", "2.101"]


def test_a_key_that_was_served_does_not_wait_for_those_that_come_later() -> None:
    queue = waiting(live(0, 1, tokens=500))
    queue.start(queue.items[0])
    for sequence in (live(1, 1), live(2, 2)):
        queue.enter(sequence)
    assert names(queue) == ["1.1", "2.2"]


def test_a_short_prompt_still_passes_a_long_one_of_its_key() -> None:
    assert names(waiting(live(0, 1, turn=5.0, tokens=500), live(1, 1, turn=3.0))) == ["1.1", "1.0"]


def test_what_was_preempted_is_next() -> None:
    queue = waiting(first := live(0, 1), live(1, 2), live(2, 1))
    queue.start(first)
    queue.add(first)
    assert names(queue)[0] == "1.0"


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(1, 50)), min_size=30, max_size=60))
def test_keys_that_wait_are_served_alike(prompts: list[tuple[int, int]]) -> None:
    """While two keys have waiting sequences, their served tokens differ by two prompts at most."""
    queue = waiting(*(live(arrival, line, tokens=tokens) for arrival, (line, tokens) in enumerate(prompts)))
    given_tokens = dict.fromkeys((1, 2, 3), 0)
    while len({one.spec.line for one in queue}) == 3:
        head = queue.items[0]
        queue.start(head)
        given_tokens[head.spec.line] += len(head.spec.prompt)
        assert max(given_tokens.values()) - min(given_tokens.values()) <= 2 * 50


def test_a_background_sequence_waits_behind_those_of_every_key() -> None:
    queue = WaitingQueue()
    queue.enter(live(0, 0, BACKGROUND_PRIORITY, turn=float(BACKGROUND_PRIORITY)))
    for arrival in range(1, 5):
        queue.enter(live(arrival, arrival % 2 + 1, tokens=10**6))
    assert names(queue)[-1] == "0.0"
