"""Number of draft tokens: the rule, its measurements, and their reproducibility."""

from collections.abc import Callable
from itertools import product
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.instance.core.speculation import Acceptance, Speculation, least_gain, speculates, speculates_now
from serving.values.sequence import SamplingParams

chances = st.lists(st.floats(0.0, 1.0), min_size=1, max_size=3)


def falling(chances: list[float]) -> tuple[float, ...]:
    gain, gains = 1.0, []
    for chance in chances:
        gain *= chance
        gains.append(gain)
    return tuple(gains)


class Run:
    """Sequences with true acceptance rates, decoded together; a draft token costs `share` of a step."""

    def __init__(self, most: int, chances: list[list[float]], share: Callable[[int], float], seed: int = 0) -> None:
        self.speculation = Speculation(most)
        self.chances = chances
        self.share = share
        self.rng = Random(seed)
        self.seen = [self.speculation.newcomer() for _ in chances]
        self.drafts = [0] * len(chances)
        self.tokens = 0
        self.time_s = 0.0
        self.choices: list[list[int]] = []

    def steps(self, count: int) -> None:
        for _ in range(count):
            self.speculation.weigh(len(self.seen), self.seen)
            wanted = [self.speculation.guesses(one) for one in self.seen]
            verified = sum(self.drafts)
            for index, drafted in enumerate(self.drafts):
                accepted = 0
                while accepted < drafted and self.rng.random() < self.chances[index][accepted]:
                    accepted += 1
                if drafted:
                    self.speculation.observe_drafts(self.seen[index], drafted, accepted)
                self.tokens += 1 + accepted
            guesses = 0.5 * (verified + sum(wanted)) / len(self.seen)
            elapsed_s = 0.01 * (1 + self.share(len(self.choices)) * guesses) * (1 + 0.02 * self.rng.random())
            self.time_s += elapsed_s
            self.speculation.observe_step(len(self.seen), verified, sum(wanted), elapsed_s)
            self.drafts = wanted
            self.choices.append(wanted)

    def mean(self, last: int) -> float:
        """Draft tokens per sequence and step in the last steps."""
        return sum(map(sum, self.choices[-last:])) / last / len(self.seen)


def test_the_worked_example() -> None:
    least = least_gain(1, 0.25, [(0.8, 0.48, 0.24)])
    assert least == pytest.approx(0.25 * 2.28 / 1.5)
    assert sum(gain > least for gain in (0.8, 0.48, 0.24)) == 2
    source = Speculation(3, unknown_share=0.25).newcomer()
    source.gains = (0.8, 0.48, 0.24)
    assert Speculation(3, unknown_share=0.25).net_gain(1, [source]) == pytest.approx(0.52)
    assert Speculation(3).net_gain(2, []) == 0.0
    assert least_gain(32, 0.9, [(0.8, 0.6)] * 32) == pytest.approx(0.9 / 32 * 32)


@given(share=st.floats(0.0, 2.0), own=st.lists(chances, min_size=1, max_size=4), others=st.integers(0, 3))
def test_no_other_choice_gives_more_tokens_per_time(share: float, own: list[list[float]], others: int) -> None:
    gains = [falling(one) for one in own]
    sequences = len(gains) + others
    least = least_gain(sequences, share, gains)

    def rate(counts: tuple[int, ...]) -> float:
        tokens = sequences + sum(sum(one[:count]) for one, count in zip(gains, counts, strict=True))
        return tokens / (1 + share / sequences * sum(counts))

    chosen = rate(tuple(sum(gain > least for gain in one) for one in gains))
    best = max(rate(counts) for counts in product(*(range(len(one) + 1) for one in gains)))
    assert chosen >= best * (1 - 1e-9)


def test_good_guesses_that_cost_little_are_all_taken() -> None:
    run = Run(3, [[0.9, 0.85, 0.8]], lambda _: 0.1)
    run.steps(600)
    assert run.mean(300) > 2.7
    assert run.tokens / run.time_s > 100 * 2.2  # against one token per 10 ms


def test_guesses_that_cost_more_than_they_give_stop_and_are_tried_again() -> None:
    run = Run(3, [[0.3, 0.2, 0.1]] * 4, lambda _: 0.6)
    run.steps(640)
    late = run.choices[-320:]
    assert run.mean(320) < 0.1
    assert sum(any(step) for step in late) == 2 * 5  # two steps of every 64
    assert run.tokens / run.time_s > 0.93 * 400  # what is lost to trials and learning


def test_it_comes_back_when_the_cost_has_fallen() -> None:
    run = Run(2, [[0.8, 0.7]], lambda step: 1.5 if step < 500 else 0.1)
    run.steps(500)
    assert run.mean(200) < 0.1
    run.steps(1500)
    assert run.mean(300) > 1.6


def test_it_stops_when_the_cost_has_risen() -> None:
    run = Run(2, [[0.8, 0.7]], lambda step: 0.1 if step < 500 else 1.5)
    run.steps(500)
    assert run.mean(200) > 1.6
    run.steps(1500)
    assert run.mean(300) < 0.2


def test_each_sequence_has_its_own_number_of_guesses() -> None:
    run = Run(3, [[0.95, 0.95, 0.95], [0.9, 0.2, 0.1], [0.02, 0.02, 0.02]], lambda _: 0.35)
    run.steps(900)
    good, middling, bad = (sum(step[index] for step in run.choices[-300:]) / 300 for index in range(3))
    assert good > 2.5
    assert 0.7 < middling < 1.7
    assert bad < 0.3


def test_a_sequence_that_turns_predictable_is_found_out() -> None:
    run = Run(1, [[0.0], [0.9]], lambda _: 0.3)
    run.steps(300)
    assert sum(step[0] for step in run.choices[-100:]) < 10
    run.chances[0] = [0.95]
    run.steps(1500)
    assert sum(step[0] for step in run.choices[-100:]) > 80


def test_without_measurements_everything_is_tried() -> None:
    speculation = Speculation(3)
    assert speculation.guesses(speculation.newcomer()) == 3
    speculation.weigh(1, [speculation.newcomer()])
    assert speculation.guesses(speculation.newcomer()) == 3


def test_acceptance_counts_a_guess_only_behind_right_ones() -> None:
    common = Acceptance(None, 3)
    common.observe(3, 1)
    assert common.tries == pytest.approx([2 * 0.998 + 1, 2 * 0.998 + 1, 2.0])
    assert common.hits == pytest.approx([1.6 * 0.998 + 1, 1.6 * 0.998, 1.6])


def test_a_newcomer_is_like_all_others_until_it_differs() -> None:
    speculation = Speculation(2)
    for _ in range(2000):
        speculation.observe_drafts(speculation.newcomer(), 2, 1)
    newcomer = speculation.newcomer()
    assert newcomer.gains == pytest.approx((1.0, 0.0), abs=0.01)
    for _ in range(40):
        speculation.observe_drafts(newcomer, 2, 0)
    assert newcomer.gains[0] < 0.25
    newcomer.doubt()
    assert newcomer.gains[0] > 0.25


@pytest.mark.parametrize(
    "sampling",
    [
        SamplingParams(logprobs=0),
        SamplingParams(logit_bias=((3, 1.0),)),
        SamplingParams(repetition_penalty=1.1),
        SamplingParams(presence_penalty=0.5),
        SamplingParams(frequency_penalty=-0.5),
    ],
)
def test_sampling_that_needs_more_than_a_draw_has_no_guesses(sampling: SamplingParams) -> None:
    assert not speculates(sampling)
    assert not speculates_now(sampling, 100)


@pytest.mark.parametrize(
    "sampling",
    [
        SamplingParams(),
        SamplingParams(temperature=0.0),
        SamplingParams(top_p=0.5, top_k=4, min_p=0.1, seed=9),
        SamplingParams(stop_token_ids=(1,), prompt_logprobs=2),
        SamplingParams(min_tokens=5),
    ],
)
def test_plain_draws_have_guesses(sampling: SamplingParams) -> None:
    assert speculates_now(sampling, 0)


def test_hidden_stop_tokens_are_waited_for() -> None:
    sampling = SamplingParams(min_tokens=5, stop_token_ids=(1,))
    assert speculates(sampling)
    assert [speculates_now(sampling, output) for output in (0, 4, 5)] == [False, False, True]
