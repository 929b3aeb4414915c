"""A decode instance: many iterations combined into one step equal single ones."""

from hypothesis import given
from hypothesis import strategies as st

from tests.virtual.core.decode_case import play

Arrivals = st.lists(st.tuples(st.integers(0, 40), st.integers(1, 60), st.integers(2, 50)), min_size=1, max_size=25)


@given(Arrivals, st.integers(1, 3), st.integers(8, 20), st.integers(0, 2))
def test_many_iterations_as_one_step_change_nothing(
    arrivals: list[tuple[int, int, int]], groups: int, blocks: int, drafts: int
) -> None:
    """Blocks may run out: then sequences are preempted, and restart, at the same iterations."""
    one_by_one, slow = play(arrivals, groups, blocks, drafts, at_once=1)
    together, fast = play(arrivals, groups, blocks, drafts, at_once=1 << 30)
    assert together.ends == one_by_one.ends
    assert together.tokens_of == one_by_one.tokens_of
    assert together.adoptions == one_by_one.adoptions
    assert fast.preemptions() == slow.preemptions()
    assert fast.meter.output_tokens == slow.meter.output_tokens
    assert len(together.ends) == len(arrivals)
    assert [together.tokens_of[f"g0-{n}/0@1"] for n in range(len(arrivals))] == [output for _, _, output in arrivals]
    fast.check()
    assert fast.sequences == 0


def test_a_lone_sequence_and_a_newcomer_that_joins_at_the_next_boundary() -> None:
    listener, _ = play([(0, 20, 11)], 2, 20, 0, at_once=1 << 30)
    assert listener.adoptions == {"g0-0/0@1": 0.25}
    assert listener.ends == {"g0-0/0@1": 10.25}
    listener, _ = play([(0, 20, 11), (3, 20, 2)], 1, 20, 0, at_once=1 << 30)
    # The first one's iterations start at 0.25; the second one arrives shortly after 1.375, hence joins at 2.25.
    assert listener.adoptions["g0-1/0@1"] == 1.375 + 1 / 1024
    assert listener.ends["g0-1/0@1"] == 3.25
    assert listener.ends["g0-0/0@1"] == 10.25
