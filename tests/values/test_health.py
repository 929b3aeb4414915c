"""Limits of a step's duration, and attribution of silence."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.values.health import (
    LEAST_ROUND_S,
    FreezeOutcome,
    Silence,
    StepLimits,
    StepWatch,
    freeze_outcome,
    hangs,
)

LIMITS = StepLimits(floor_s=2.5, factor=4.0, first_s=30.0)


def test_an_engine_that_made_no_step_yet_has_the_first_limit() -> None:
    assert StepWatch(LIMITS).limit_s(1) == 30.0
    assert StepWatch(StepLimits(floor_s=60.0, factor=4.0, first_s=30.0)).limit_s(1) == 60.0


def test_quick_steps_have_the_floor() -> None:
    watch = StepWatch(LIMITS)
    watch.observe(8, 0.03)
    assert watch.limit_s(8) == 2.5
    assert hangs(2.6, watch.limit_s(8))
    assert not hangs(2.4, watch.limit_s(8))


def test_a_long_but_usual_chunk_is_no_hang() -> None:
    watch = StepWatch(LIMITS)
    for _ in range(5):
        watch.observe(512, 30.0)
    assert watch.limit_s(512) == 120.0
    assert not hangs(31.0, watch.limit_s(512))
    assert hangs(121.0, watch.limit_s(512))


def test_a_larger_step_than_ever_may_take_longer_in_proportion() -> None:
    watch = StepWatch(LIMITS)
    watch.observe(1, 1.0)
    assert watch.limit_s(1) == 4.0
    assert watch.limit_s(256) == 4.0 * 2**8, "256 tokens are eight sizes up"
    watch.observe(256, 2.0)
    assert watch.limit_s(256) == 8.0, "until one was seen"
    assert watch.limit_s(1) == 4.0


def test_a_smaller_step_than_ever_may_take_as_long_as_the_smallest_seen() -> None:
    watch = StepWatch(LIMITS)
    watch.observe(256, 2.0)
    assert watch.limit_s(1) == 8.0
    assert hangs(float("inf"), 1e9), "a crashed engine hangs"


def test_one_freeze_is_forgotten() -> None:
    watch = StepWatch(LIMITS)
    watch.observe(4, 0.1)
    watch.observe(4, 60.0)
    assert watch.limit_s(4) == pytest.approx(10.0), "counted as no longer than it was allowed to take"
    for _ in range(114):
        watch.observe(4, 0.1)
    assert watch.limit_s(4) == 2.5


def test_steps_that_really_become_long_are_learnt() -> None:
    watch = StepWatch(LIMITS)
    watch.observe(4, 0.1)
    for _ in range(4):
        watch.observe(4, 60.0)
    assert watch.limit_s(4) == 240.0


@given(steps=st.lists(st.tuples(st.integers(1, 4096), st.floats(0.0001, 100.0)), min_size=1, max_size=50))
def test_the_step_just_seen_is_never_a_hang_if_it_was_none_before(steps: list[tuple[int, float]]) -> None:
    watch = StepWatch(LIMITS)
    for tokens, seconds in steps:
        allowed = watch.limit_s(tokens)
        watch.observe(tokens, seconds)
        assert watch.limit_s(tokens) >= LIMITS.floor_s
        if seconds <= allowed:
            assert not hangs(seconds, watch.limit_s(tokens))


def test_a_silent_peer_is_silent() -> None:
    silence = Silence(2.0, now=10.0)
    for now in (10.1, 10.5, 11.0, 11.5, 12.0):
        silence.look(now)
        assert not silence.too_long(10.0, now)
    silence.look(12.1)
    assert silence.too_long(10.0, 12.1)
    assert not silence.too_long(11.9, 12.1)


def test_a_watcher_waits_until_a_silence_is_too_long_but_not_so_long_that_it_seems_asleep() -> None:
    silence = Silence(2.0, now=10.0)
    assert silence.pause_s([], 10.0) == silence.pause_s([9.9, 10.0], 10.0) == 0.25
    silence.look(10.25)
    assert silence.pause_s([8.4, 10.2], 10.25) == 0.25, "the watcher began at 10.0"
    assert silence.pause_s([11.0, 10.1], 12.0) == pytest.approx(0.1)
    assert silence.pause_s([10.1], 12.1) == LEAST_ROUND_S


def test_who_did_not_look_blames_nobody() -> None:
    silence = Silence(2.0, now=10.0)
    silence.look(10.1)
    silence.look(20.0)
    assert not silence.too_long(10.0, 20.0)
    for now in (20.4, 20.8, 21.2, 21.6, 22.0):
        silence.look(now)
        assert not silence.too_long(10.0, now)
    silence.look(22.1)
    assert silence.too_long(10.0, 22.1), "the whole limit again, but no more"


@pytest.mark.parametrize(
    ("frozen_s", "course"),
    [
        (2.5, FreezeOutcome(2.5, None, False)),
        (2.6, FreezeOutcome(2.6, 2.5, False)),
        (15.0, FreezeOutcome(15.0, 2.5, False)),
        (15.1, FreezeOutcome(15.0, 2.5, True)),
        (math.inf, FreezeOutcome(15.0, 2.5, True)),
    ],
)
def test_a_frozen_instance_is_waited_for_then_left_then_replaced(frozen_s: float, course: FreezeOutcome) -> None:
    assert freeze_outcome(frozen_s, 2.5, 15.0) == course


def test_an_instance_that_is_replaced_before_gateways_notice_is_never_silent() -> None:
    assert freeze_outcome(math.inf, 20.0, 15.0) == FreezeOutcome(15.0, None, True)
