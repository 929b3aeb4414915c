"""Sampling: each control alone, the random number, statistics, independence from the batch."""

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from serving.model import host_sampler
from serving.model.host_sampler import Mask, Sampled, mix, uniform
from serving.model.sampler import sample as torch_sample
from serving.model.sampler import token_logprobs
from serving.values.sequence import SamplingParams
from serving.values.step_plan import SampleOrder


def sample(logits: Tensor, orders: Sequence[SampleOrder], masks: Sequence[Mask] = ()) -> list[Sampled]:
    """In torch, after checking that numpy draws the same."""
    found = torch_sample(logits, orders, masks)
    host = host_sampler.sample(logits.numpy(), orders, masks)
    assert [one.token for one in host] == [one.token for one in found]
    for ours, theirs in zip(host, found, strict=True):
        assert (ours.logprobs is None) == (theirs.logprobs is None)
        if ours.logprobs is not None and theirs.logprobs is not None:
            assert ours.logprobs.logprob == pytest.approx(theirs.logprobs.logprob, abs=1e-5)
            assert [p for _, p in ours.logprobs.top] == pytest.approx([p for _, p in theirs.logprobs.top], abs=1e-5)
    return found


def order(prompt: Sequence[int] = (0,), output: Sequence[int] = (), **sampling: Any) -> SampleOrder:
    return SampleOrder(SamplingParams(**sampling), prompt, output)


def draw(logits: Sequence[float], **sampling: Any) -> int:
    return sample(torch.tensor([logits]), [order(**sampling)])[0].token


def drawn_set(logits: Sequence[float], **sampling: Any) -> set[int]:
    """Tokens drawn at 400 positions."""
    rows = torch.tensor([logits]).expand(400, -1)
    orders = [order(output=[0] * i, **sampling) for i in range(400)]
    return {s.token for s in sample(rows, orders)}


def test_greedy_takes_the_lowest_id_on_a_tie_and_low_temperatures_approach_it() -> None:
    assert draw([0.0, 3.0, 1.0], temperature=0) == 1
    assert draw([0.0, 3.0, 3.0], temperature=0) == 1
    assert drawn_set([0.0, 1.0, 0.9], temperature=1e-4) == {1}
    assert drawn_set([-1e4, 1e4, 0.0], temperature=1e-6) == {1}
    assert drawn_set([0.0, float("-inf"), 0.0], temperature=100.0) == {0, 2}


def test_the_random_number_is_pinned_and_depends_on_seed_and_position_only() -> None:
    """First outputs of splitmix64 seeded with 1234567."""
    golden = 0x9E3779B97F4A7C15
    found = [mix((1234567 + golden * (i + 1)) & (2**64 - 1)) for i in range(3)]
    assert found == [6457827717110365317, 3203168211198807973, 9817491932198370423]
    # Pinned: another implementation must produce the same numbers, or resumed sequences change their text.
    assert [uniform(0, 0), uniform(1, 0), uniform(2**64 - 1, 7)] == PINNED
    values = [uniform(seed, position) for seed in range(30) for position in range(100)]
    assert all(0 <= u < 1 for u in values)
    counts = Counter(int(u * 10) for u in values)
    chi_square = sum((counts[b] - 300) ** 2 / 300 for b in range(10))
    assert chi_square < 27.9  # 0.1 % for 9 degrees of freedom
    logits = torch.zeros(1, 50)
    by_split = {sample(logits, [order([1] * n, [2] * (9 - n), seed=4)])[0].token for n in range(1, 10)}
    assert len(by_split) == 1
    assert len({draw([0.0] * 50, seed=s) for s in range(40)}) > 15
    assert len(drawn_set([0.0] * 50, seed=1)) > 45


PINNED = [0.6524484863740322, 0.36818951565166946, 0.7238582745899125]


def test_frequencies_follow_the_distribution() -> None:
    logits = torch.tensor([1.0, 0.0, -1.0, 2.0, 0.5])
    rows, orders = logits.expand(4000, -1), [order(output=[0] * i, seed=9, temperature=0.7) for i in range(4000)]
    counts = Counter(s.token for s in sample(rows, orders))
    expected = (logits / 0.7).softmax(-1) * 4000
    chi_square = sum((counts[i] - float(expected[i])) ** 2 / float(expected[i]) for i in range(5))
    assert chi_square < 18.5  # 0.1 % for 4 degrees of freedom
    logits = torch.randn(2, 9)
    before = logits.clone()
    sample(logits, [order(logit_bias=((1, 3.0),), top_k=2), order(temperature=0, min_tokens=1, stop_token_ids=(3,))])
    assert torch.equal(logits, before)


def test_top_k_top_p_and_min_p() -> None:
    assert drawn_set([0.0, 0.3, 0.2, 0.1], top_k=2) == {1, 2}
    assert drawn_set([0.0, 0.3, 0.2, 0.1], top_k=0) == {0, 1, 2, 3}
    assert drawn_set([0.0, 0.3, 0.2, 0.1], top_k=99) == {0, 1, 2, 3}
    assert drawn_set([0.2, 0.3, 0.2, 0.1], top_k=2) == {0, 1, 2}  # a tie at the border stays together
    logits = [math.log(w) for w in (0.1, 0.5, 0.3, 0.1)]
    assert drawn_set(logits, top_p=0.4) == {1}
    assert drawn_set(logits, top_p=0.75) == {1, 2}
    assert drawn_set(logits, top_p=0.85) == {0, 1, 2, 3}  # the two tenths leave or stay together
    assert drawn_set(logits, top_p=1e-9) == {1}
    assert drawn_set(logits, top_p=0.55, top_k=2) == {1}  # a share of what top_k left: 0.5 / 0.8
    assert drawn_set(logits, min_p=0.5) == {1, 2}
    assert drawn_set(logits, min_p=0.1) == {0, 1, 2, 3}
    assert drawn_set(logits, min_p=1.0) == {1}


def test_top_p_beyond_the_sorted_candidates() -> None:
    logits = torch.randn(1, 3000, generator=torch.Generator().manual_seed(0)) * 0.1
    weights = logits[0].double().softmax(-1)
    ranked = weights.sort(descending=True).values
    floor = ranked[int((ranked.cumsum(-1) < 0.9).sum())]
    kept = set((weights >= floor).nonzero()[:, 0].tolist())
    drawn = {sample(logits, [order(output=[0] * i, top_p=0.9)])[0].token for i in range(400)}
    assert drawn <= kept
    assert len(kept) > 512


def test_penalties_biases_and_hidden_stop_tokens() -> None:
    assert draw([2.0, 1.5, -1.0], temperature=0, prompt=[0], repetition_penalty=2.0) == 1
    assert draw([2.0, 1.5, -1.0], temperature=0, prompt=[2], output=[0], repetition_penalty=2.0) == 1
    assert draw([-1.0, -1.5], temperature=0, prompt=[0, 0], repetition_penalty=2.0) == 1
    assert draw([-1.0, -2.5], temperature=0, prompt=[0, 0], repetition_penalty=2.0) == 0  # once, not per occurrence
    assert draw([2.0, 1.5], temperature=0, prompt=[0], presence_penalty=1.0) == 0
    assert draw([2.0, 1.5], temperature=0, output=[0], presence_penalty=1.0) == 1
    assert draw([2.0, 1.5], temperature=0, output=[0, 0], presence_penalty=0.4) == 0
    assert draw([2.0, 1.5], temperature=0, output=[0, 0], frequency_penalty=0.4) == 1
    assert draw([1.5, 1.4], temperature=0, output=[1], frequency_penalty=-1.0) == 1
    assert draw([2.0, 1.5, 0.0], temperature=0, logit_bias=((2, 5.0),)) == 2
    assert drawn_set([0.0, 0.0, 0.0], logit_bias=((0, -100.0), (1, -100.0))) == {2}
    sampling = {"temperature": 0, "min_tokens": 2, "stop_token_ids": (0, 1)}
    assert draw([3.0, 2.0, 1.0], output=[2], **sampling) == 2
    assert draw([3.0, 2.0, 1.0], output=[2, 2], **sampling) == 0


def test_logprobs_are_of_unmodified_logits_and_of_the_vocabulary() -> None:
    logits = torch.tensor([[1.0, 2.0, 0.0]])
    result = sample(logits, [order(temperature=0, logit_bias=((2, 9.0),), logprobs=2)])[0]
    expected = logits[0].log_softmax(-1).tolist()
    assert result.token == 2
    assert result.logprobs is not None
    assert result.logprobs.token == 2
    assert result.logprobs.logprob == pytest.approx(expected[2])
    assert [token for token, _ in result.logprobs.top] == [1, 0]
    assert [value for _, value in result.logprobs.top] == pytest.approx([expected[1], expected[0]])
    assert len(token_logprobs(torch.zeros(1, 3), [1], 20)[0].top) == 3


def test_logprobs_as_asked_for_each_row() -> None:
    rows = torch.randn(3, 9)
    found = sample(rows, [order(logprobs=0), order(), order(temperature=0, logprobs=4)])
    assert found[0].logprobs is not None
    assert found[0].logprobs.top == ()
    assert found[1].logprobs is None
    assert found[2].logprobs is not None
    assert len(found[2].logprobs.top) == 4
    assert found[2].logprobs.top[0] == (found[2].token, found[2].logprobs.logprob)
    rows = torch.randn(2, 9)
    found = sample(rows, [order(temperature=0, logprobs=0, logprob_ids=(4, 2)), order(logprobs=1)])
    expected = rows[0].log_softmax(-1).tolist()
    assert found[0].logprobs is not None
    assert sorted(token for token, _ in found[0].logprobs.top) == [2, 4]
    values = [value for _, value in found[0].logprobs.top]
    assert values == pytest.approx(sorted((expected[2], expected[4]), reverse=True))
    assert found[1].logprobs is not None
    assert len(found[1].logprobs.top) == 1


SAMPLINGS = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.3, 1.0, 2.0]),
    top_p=st.sampled_from([0.1, 0.6, 0.95, 1.0]),
    top_k=st.sampled_from([0, 1, 5, 100]),
    min_p=st.sampled_from([0.0, 0.05, 0.5]),
    repetition_penalty=st.sampled_from([1.0, 1.3]),
    presence_penalty=st.sampled_from([0.0, 0.7]),
    frequency_penalty=st.sampled_from([0.0, 0.4]),
    logit_bias=st.sampled_from([(), ((3, 2.0),)]),
    seed=st.integers(0, 2**64 - 1),
    min_tokens=st.sampled_from([0, 9]),
    stop_token_ids=st.sampled_from([(), (1, 2)]),
    logprobs=st.sampled_from([None, 0, 3]),
)


@settings(max_examples=60, deadline=None)
@given(samplings=st.lists(SAMPLINGS, min_size=2, max_size=8), seed=st.integers(0, 1000))
def test_a_row_does_not_depend_on_its_batch(samplings: list[SamplingParams], seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(len(samplings), 700, generator=generator) * 3
    orders = [SampleOrder(s, [4, 5], [6, 6, 3]) for s in samplings]
    together = sample(logits, orders)
    for row, one in enumerate(orders):
        assert sample(logits[row : row + 1], [one]) == [together[row]]


def plain_draw(logits: Tensor, one: SampleOrder) -> int:
    """The module's definition, written out for one row in Python floats."""
    p = one.sampling
    weights = [math.exp((float(x) - float(logits.max())) / p.temperature) for x in logits]
    weights = [w if w >= p.min_p else 0.0 for w in weights]
    if 0 < p.top_k < len(weights):
        floor = sorted(weights, reverse=True)[p.top_k - 1]
        weights = [w if w >= floor else 0.0 for w in weights]
    if p.top_p < 1:
        total, reached = sum(weights), 0.0
        for w in sorted(weights, reverse=True):
            reached += w
            if reached >= p.top_p * total:
                weights = [x if x >= w else 0.0 for x in weights]
                break
    target = uniform(p.seed, len(one.prompt) + len(one.output)) * sum(weights)
    running = 0.0
    for token, w in enumerate(weights):
        running += w
        if running > target:
            return token
    raise AssertionError("no token")


@settings(max_examples=100, deadline=None)
@given(
    seed=st.integers(0, 2**64 - 1),
    temperature=st.sampled_from([0.3, 1.0, 1.7]),
    top_p=st.sampled_from([0.2, 0.9, 1.0]),
    top_k=st.sampled_from([0, 3, 30]),
    min_p=st.sampled_from([0.0, 0.02]),
)
def test_equals_its_written_definition(seed: int, temperature: float, top_p: float, top_k: int, min_p: float) -> None:
    logits = torch.randn(1, 60, generator=torch.Generator().manual_seed(seed % 1000)) * 2
    one = order(seed=seed, temperature=temperature, top_p=top_p, top_k=top_k, min_p=min_p)
    assert sample(logits, [one])[0].token == plain_draw(logits[0], one)


@pytest.mark.parametrize(
    "sampling",
    [
        {"min_tokens": 2, "stop_token_ids": (1, 2**31 - 1)},
        {"min_tokens": 2, "stop_token_ids": (0, 1, 2)},
        {"repetition_penalty": 1e-300},
        {"repetition_penalty": 1e-300, "top_p": 0.5, "top_k": 2},
        {"temperature": 1e-310},
        {"temperature": 5e-324, "min_p": 0.1},
    ],
)
def test_what_cannot_be_sampled_gives_some_token_and_leaves_its_neighbours_alone(sampling: dict[str, Any]) -> None:
    rows = torch.tensor([[4.0, -2.0, 3.0]]).expand(2, -1)
    strange, neighbour = sample(rows, [order((0, 2), **sampling), order(temperature=0.9, seed=5)])
    assert strange.token in range(3)
    assert neighbour.token == draw([4.0, -2.0, 3.0], temperature=0.9, seed=5)
