"""Cost of a draft token, from measured steps."""

from random import Random

import pytest

from serving.instance.core.speculation import StepCost


def told(cost: StepCost, sequences: int, share: float, base_s: float = 0.01, rounds: int = 8) -> StepCost:
    """Steps without draft tokens and with one and two per sequence, exactly on a line."""
    for _ in range(rounds):
        for guesses in (0, 1, 2):
            cost.observe(sequences, guesses * sequences, base_s * (1 + share * guesses))
    return cost


def test_nothing_is_known_before_two_levels_are() -> None:
    cost = StepCost()
    assert cost.share(4) is None
    for _ in range(50):
        cost.observe(4, 8.0, 0.01)
    assert cost.share(4) is None
    assert not cost.known(4)
    for _ in range(3):
        cost.observe(4, 0.0, 0.01)
    assert cost.known(4)
    assert cost.share(4) == 0.0


@pytest.mark.parametrize(("sequences", "share"), [(1, 0.05), (1, 0.4), (5, 0.25), (32, 0.9)])
def test_a_line_is_found(sequences: int, share: float) -> None:
    assert told(StepCost(), sequences, share).share(sequences) == pytest.approx(share)


def test_steps_that_something_else_made_long_count_little() -> None:
    """A third of all steps is delayed up to fourfold by other work."""
    rng, cost = Random(5), StepCost()
    for _ in range(200):
        for guesses in (0, 1):
            disturbed = 1 + 3 * rng.random() if rng.random() < 0.33 else 1.0
            cost.observe(1, guesses, 0.01 * (1 + 0.3 * guesses) * disturbed * (1 + 0.02 * rng.random()))
    share = cost.share(1)
    assert share is not None
    assert share == pytest.approx(0.3, abs=0.05)


def test_sizes_of_batch_are_apart_and_the_nearest_stands_in() -> None:
    cost = told(told(StepCost(), 1, 0.1), 16, 0.8)
    assert cost.share(13) == pytest.approx(0.8)  # 13 to 16 are one size
    assert cost.share(2) == pytest.approx(0.1)
    assert cost.share(60) == pytest.approx(0.8)
    assert cost.known(14)
    assert not cost.known(12)


def test_a_level_that_is_long_gone_says_nothing() -> None:
    cost = told(StepCost(), 1, 0.5)
    for _ in range(330):
        cost.observe(1, 0.0, 0.03)
    assert cost.share(1) is None


def test_guesses_never_make_a_step_shorter() -> None:
    assert told(StepCost(), 1, -0.3).share(1) == 0.0


def test_a_clock_that_stands_still_tells_nothing() -> None:
    assert told(StepCost(), 1, 0.5, base_s=0.0).share(1) is None
