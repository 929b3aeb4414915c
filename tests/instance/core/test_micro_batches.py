"""The rule that cuts a rank's steps into one or two micro-batches, by measured times."""

import random

import pytest

from serving.instance.core.micro_batches import FIRST_KEPT, LEAST_GAIN, TRIAL_PAIRS, MicroBatches


def used(rule: MicroBatches, rows: int, steps: int, two: float, noise: float = 0.0) -> list[int]:
    """Numbers of micro-batches of these steps, where two take `two` times as long as one."""
    draw, found = random.Random(1), []
    for _ in range(steps):
        found.append(rule.choose(rows, 2))
        seconds = rows * (two if found[-1] == 2 else 1.0) * draw.uniform(1, 1 + noise)
        rule.on_step(rows, 2, found[-1], seconds)
    return found


@pytest.mark.parametrize("two", [0.7, 0.9, 1 - LEAST_GAIN / 2, 1.0, 1.6])
def test_the_faster_is_kept_and_trials_become_rare(two: float) -> None:
    found = used(MicroBatches("auto"), 32, 20_000, two, noise=0.03)
    better = 2 if two < 1 - LEAST_GAIN else 1
    assert found[: 2 * TRIAL_PAIRS].count(2) == TRIAL_PAIRS, "both are tried in turns"
    assert found.count(3 - better) <= TRIAL_PAIRS * 8, "each trial with the same winner doubles the steps to the next"
    assert set(found[-1000:]) == {better}


def test_the_choice_follows_a_change_and_is_made_by_size() -> None:
    rule = MicroBatches("auto")
    assert used(rule, 16, 100, two=1.5)[-1] == 1
    assert used(rule, 512, 100, two=0.8)[-1] == 2, "other sizes are measured apart"
    assert used(rule, 17, 1, two=1.5) == [1], "and similar ones together"
    assert used(rule, 16, FIRST_KEPT + 2 * TRIAL_PAIRS, two=0.8)[-1] == 2


def test_a_fixed_number_is_used_and_one_sequence_is_not_divided() -> None:
    for wanted in (1, 2):
        assert set(used(MicroBatches(str(wanted)), 8, 50, two=0.5)) == {wanted}
        assert MicroBatches(wanted).choose(512, 1) == 1
    rule = MicroBatches("auto")
    for _ in range(100):
        assert rule.choose(512, 1) == 1
        rule.on_step(512, 1, 1, 1.0)
    assert used(rule, 512, 2, two=1.0) == [1, 2], "such steps are no samples"
