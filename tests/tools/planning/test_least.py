"""The search for the fewest NPUs, on a supernode with known results."""

import dataclasses
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serving.tools.planning.candidate import Candidate, SearchSpace, Shape
from serving.tools.planning.knowledge import Floor, Knowledge
from serving.tools.planning.npu_search import find_least, most_generous, neighbours, runner_ups
from serving.tools.planning.verdict import PlanProbe, PlanTarget, PlanVerdict
from tests.tools.planning.fake import FakeSupernode

TARGET = PlanTarget(2.0, 0.05, 0.9)
PREFILL = [Shape(2, 100), Shape(2, 25), Shape(3, 100), Shape(5, 100)]
DECODE = [Shape(4, 8), Shape(7, 8), Shape(7, 3), Shape(12, 8)]


@st.composite
def worlds(draw: st.DrawFn) -> tuple[SearchSpace, FakeSupernode]:
    prefill = draw(st.lists(st.sampled_from(PREFILL), min_size=1, max_size=4, unique=True))
    decode = draw(st.lists(st.sampled_from(DECODE), min_size=1, max_size=4, unique=True))
    space = SearchSpace(tuple(prefill), tuple(decode), draw(st.integers(6, 60)))
    needs = st.integers(1, 14)
    fake = FakeSupernode({one: draw(needs) for one in PREFILL}, {one: draw(needs) for one in DECODE})
    return space, fake


def known(space: SearchSpace) -> Knowledge:
    return Knowledge(space, TARGET, {}, {})


@given(world=worlds(), doubt=st.sampled_from([1.0, 3.0]))
@settings(deadline=None, max_examples=40)
def test_finds_the_cheapest_of_all_that_hold(world: tuple[SearchSpace, FakeSupernode], doubt: float) -> None:
    space, fake = world
    best = find_least(known(space), fake.evaluate, doubt=doubt)
    holding = [one for one in space.candidates() if fake.verdict(one).holds(TARGET)]
    assert (best is None) == (not holding)
    if best is not None:
        assert fake.verdict(best).holds(TARGET)
        assert best.npus == min(one.npus for one in holding)


@given(world=worlds())
@settings(deadline=None, max_examples=30)
def test_a_plan_was_seen_to_hold_on_the_whole_trace(world: tuple[SearchSpace, FakeSupernode]) -> None:
    space, fake = world
    knowledge = known(space)
    best = find_least(knowledge, fake.evaluate)
    if best is not None:
        assert knowledge.tried[best].holds(TARGET)
        assert any(probe.whole and probe.candidate == best for probe in fake.asked)


def test_at_the_same_cost_the_plan_that_holds_best_is_taken() -> None:
    space = SearchSpace((Shape(2, 100), Shape(4, 100)), (Shape(4, 8),), 12)
    fake = FakeSupernode({Shape(2, 100): 3, Shape(4, 100): 1}, {Shape(4, 8): 1})
    knowledge = Knowledge(space, PlanTarget(2.0, 0.05, 0.7), {}, {})
    best = find_least(knowledge, fake.evaluate)
    assert best is not None
    runner_ups(knowledge, best, fake.evaluate)
    assert knowledge.best == Candidate(Shape(4, 100), 1, Shape(4, 8), 1)
    worse = Candidate(Shape(2, 100), 2, Shape(4, 8), 1)
    assert "costs as much as 1 x 4 + 1 x 4" in knowledge.reason(worse)


def test_floors_and_dear_shapes_spare_simulations() -> None:
    space = SearchSpace(tuple(PREFILL), tuple(DECODE), 60)
    fake = FakeSupernode(dict.fromkeys(PREFILL, 4), dict.fromkeys(DECODE, 2))
    find_least(known(space), fake.evaluate, doubt=1.0)
    assert len([probe for probe in fake.asked if probe.whole]) <= 6 < len(list(space.candidates())) / 10

    space = SearchSpace((Shape(2, 100), Shape(20, 100)), (Shape(4, 8), Shape(12, 8)), 60)
    fake = FakeSupernode({Shape(2, 100): 2, Shape(20, 100): 1}, {Shape(4, 8): 1, Shape(12, 8): 1})
    find_least(known(space), fake.evaluate)
    shapes = {(probe.candidate.prefill.npus, probe.candidate.decode.npus) for probe in fake.asked if probe.whole}
    assert shapes == {(2, 4)}


def test_what_missed_on_the_stretch_is_tried_last() -> None:
    """Five are needed; three miss too little on the part of the trace to be excluded. A miss of four then excludes
    three.
    """
    prefill, decode = Shape(2, 100), Shape(4, 8)
    space = SearchSpace((prefill,), (decode,), 40)
    fake = FakeSupernode({prefill: 5}, {decode: 1})
    knowledge = Knowledge(space, PlanTarget(2.0, 0.05, 0.8), {prefill: Floor(3, "by the cost model")}, {})
    assert find_least(knowledge, fake.evaluate) == Candidate(prefill, 5, decode, 1)
    assert [probe.candidate.prefills for probe in fake.asked if probe.whole] == [4, 5]
    assert all(probe.may_stop == probe.whole for probe in fake.asked)


def test_a_pool_that_misses_again_and_again_grows_in_steps_that_double() -> None:
    """Forty decode instances are needed, and no lower bound shows it: they are not tried one by one."""
    prefill, decode = Shape(2, 100), Shape(4, 8)
    space = SearchSpace((prefill,), (decode,), 300)

    class Steep(FakeSupernode):
        def evaluate(self, probes: Sequence[PlanProbe]) -> list[PlanVerdict]:
            """The part of the trace is calm, unlike the whole."""
            verdicts = super().evaluate(probes)
            calm = dataclasses.replace(verdicts[0], attainment=1.0, ttft_attainment=1.0, tpot_attainment=1.0)
            return [one if probe.whole else calm for probe, one in zip(probes, verdicts, strict=True)]

    fake = Steep({prefill: 1}, {decode: 40})
    assert find_least(known(space), fake.evaluate) == Candidate(prefill, 1, decode, 40)
    asked = [(probe.candidate.prefills, probe.candidate.decodes) for probe in fake.asked if probe.whole]
    assert len(asked) <= 20, str(asked)


def test_a_floor_that_noise_made_too_high_is_found_by_the_neighbours() -> None:
    """A prefill number that fails with one decode shape is tried again with the best plan's."""
    small, large = Shape(4, 8), Shape(8, 8)
    space = SearchSpace((Shape(2, 100),), (small, large), 60)

    class Noisy(FakeSupernode):
        def verdict(self, one: Candidate, rate: float = 1.0) -> PlanVerdict:
            found = super().verdict(one, rate)
            if one.decode == small and one.prefills < 9:
                return dataclasses.replace(found, attainment=0.0, ttft_attainment=0.0)
            return found

    fake = Noisy({Shape(2, 100): 3}, {small: 5, large: 1})
    best = find_least(Knowledge(space, TARGET, {Shape(2, 100): Floor(5, "noise")}, {}), fake.evaluate)
    assert best == Candidate(Shape(2, 100), 3, large, 1)


def test_prompts_that_wait_for_a_full_decode_pool_do_not_count_against_prefill() -> None:
    """Decode without capacity delays prefill: both limits are missed, and more decode may fix both."""
    prefill, decode = Shape(2, 100), Shape(4, 8)
    knowledge = known(SearchSpace((prefill,), (decode,), 20))
    few = Candidate(prefill, 2, decode, 1)
    nothing = dataclasses.replace(FakeSupernode({prefill: 9}, {decode: 9}).verdict(few), why="both are missed")
    knowledge.learn(few, nothing)
    assert Candidate(prefill, 2, decode, 2) in knowledge.untried()
    assert Candidate(prefill, 3, decode, 1) in knowledge.untried()
    assert Candidate(prefill, 1, decode, 1) not in knowledge.untried()
    assert knowledge.reason(Candidate(prefill, 1, decode, 1)) == "2 x 2 + 1 x 4: both are missed"


def test_batch_limits() -> None:
    usual, shorter, decode = Shape(2, 100), Shape(2, 25), Shape(4, 8)
    space = SearchSpace((usual, shorter), (decode,), 40)
    fake = FakeSupernode({usual: 5, shorter: 4}, {decode: 1})
    assert find_least(known(space), fake.evaluate) == Candidate(shorter, 4, decode, 1)

    usual, lower, prefill = Shape(4, 96), Shape(4, 24), Shape(2, 100)
    space = SearchSpace((prefill,), (usual, lower), 40)
    fake = FakeSupernode({prefill: 3}, {usual: 2, lower: 2}, batch=12.0)
    assert find_least(known(space), fake.evaluate) == Candidate(prefill, 3, usual, 2)
    assert all(probe.candidate.decode == usual for probe in fake.asked if probe.whole)

    prefill, decode = PREFILL[0], DECODE[0]
    space = SearchSpace((prefill,), (decode,), 40)
    fake = FakeSupernode({prefill: 3}, {decode: 2})
    knowledge = Knowledge(space, TARGET, {prefill: Floor(3, "by the cost model")}, {decode: Floor(2, "also")})
    assert find_least(knowledge, fake.evaluate) == Candidate(prefill, 3, decode, 2)
    assert knowledge.reason(Candidate(prefill, 1, decode, 2))


def test_edges_of_the_space() -> None:
    space = SearchSpace((Shape(2, 1),), (Shape(4, 1),), 8)
    one = Candidate(Shape(2, 1), 2, Shape(4, 1), 1)
    assert neighbours(one, space, -1) == [Candidate(Shape(2, 1), 1, Shape(4, 1), 1)]
    assert neighbours(one, space, +1) == []
    space = SearchSpace((Shape(2, 1),), (Shape(4, 1), Shape(6, 1)), 16)
    assert [one.npus for one in most_generous(space)] == [16, 16]
    space = SearchSpace((Shape(4, 1),), (Shape(8, 1),), 8)
    assert list(space.candidates()) == []
    assert find_least(known(space), FakeSupernode({}, {}).evaluate) is None


@pytest.mark.parametrize(("npus", "nodes"), [(8, 1), (9, 2), (16, 2)])
def test_nodes_are_counted_whole(npus: int, nodes: int) -> None:
    assert Candidate(Shape(npus - 4, 1), 1, Shape(4, 1), 1).nodes == nodes
