"""Draws of the native step equal those of sampler.py, whichever of the two makes them."""

from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from serving.ids import BlockId, SequenceId
from serving.instance.executors.native_executor import NativeExecutor
from serving.model.model import Model
from serving.model.sampler import sample
from serving.values.sequence import SamplingParams, TokenLogprobs
from serving.values.step_plan import SampleOrder, SequenceStep, StepPlan
from tests.instance.native_pair import HAND_OUT, logits_of, native_executor, prompt, torch_executor
from tests.model.random_checkpoint import write_random_checkpoint

KNOWN = prompt(7, 3)
BLOCKS = [BlockId(0), BlockId(1)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_random_checkpoint(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def executor(folder: Path) -> NativeExecutor:
    return native_executor(folder)


def rules() -> st.SearchStrategy[SamplingParams]:
    """Sampling rules that the library supports."""
    return st.builds(
        SamplingParams,
        temperature=st.one_of(st.just(0.0), st.floats(0.05, 3.0), st.sampled_from([1e-6, 50.0])),
        top_k=st.sampled_from([-1, 0, 1, 2, 7, 40, 319, 320, 5000]),
        top_p=st.one_of(st.just(1.0), st.floats(0.0, 1.0)),
        min_p=st.one_of(st.just(0.0), st.floats(0.0, 1.0)),
        seed=st.integers(0, 2**64 - 1),
    )


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(params=st.lists(rules(), min_size=1, max_size=20), spread=st.sampled_from([0, 1, 5]))
def test_same_draws_from_the_same_logits(executor: NativeExecutor, params: list[SamplingParams], spread: int) -> None:
    """`spread` distinguishes sequences by their last token, so that their logits differ."""
    steps, orders = [], []
    for i, sampling in enumerate(params):
        tokens = [*KNOWN[:-1], 6 + i * spread]
        orders.append(SampleOrder(sampling, tokens, []))
        blocks = [BlockId(2 * i), BlockId(2 * i + 1)]
        steps.append(SequenceStep(SequenceId(f"s{i}"), tokens, 0, blocks, orders[-1]))
    found = [r.tokens[0] for part in _parts(steps) for r in executor.execute(StepPlan(0, tuple(part))).results]
    asked = [_handing_out(step) for step in steps]
    logits = torch.cat([logits_of(executor, part) for part in _parts(asked)])
    assert found == [draw.token for draw in sample(logits, orders)]


def _parts(steps: list[SequenceStep]) -> list[list[SequenceStep]]:
    """As many as fit into one step."""
    return [steps[first : first + 8] for first in range(0, len(steps), 8)]


def _handing_out(step: SequenceStep) -> SequenceStep:
    order = SampleOrder(HAND_OUT, step.tokens, [])
    return SequenceStep(step.sequence_id, step.tokens, step.start, step.block_table, order)


def test_draws_follow_the_distribution(executor: NativeExecutor) -> None:
    """Shares of 3,000 draws against the softmax: within four standard deviations, over the eight most likely tokens."""
    draws: list[int] = []
    for first in range(0, 3000, 60):
        steps = [
            SequenceStep(
                SequenceId(str(seed)),
                [KNOWN[-1]],
                6,
                BLOCKS,
                SampleOrder(SamplingParams(temperature=1.5, seed=seed), KNOWN, []),
            )
            for seed in range(first, first + 60)
        ]
        draws += [r.tokens[0] for r in executor.execute(StepPlan(0, tuple(steps))).results]
    step = _handing_out(SequenceStep(SequenceId("s"), [KNOWN[-1]], 6, BLOCKS, None))
    shares = (logits_of(executor, [step])[0].double() / 1.5).softmax(-1)
    for token in shares.topk(8).indices.tolist():
        share = float(shares[token])
        assert abs(draws.count(token) / 3000 - share) < 4 * (share * (1 - share) / 3000) ** 0.5


def test_equal_logits(tmp_path: Path) -> None:
    """With a head of zeros the lowest id wins, and every filter keeps or drops all tokens."""
    folder = write_random_checkpoint(tmp_path)
    executor, plain = native_executor(folder), torch_executor(folder)
    for model in (executor.model, plain.model):
        assert isinstance(model, Model)
        with torch.inference_mode():
            model.norm.weight.zero_()
    executor = NativeExecutor(executor.model, executor.kv_cache, threads=1, max_rows=8)
    for sampling in (
        SamplingParams(temperature=0),
        SamplingParams(top_k=1, seed=1),
        SamplingParams(top_p=0.3, seed=2),
        SamplingParams(min_p=1.0, seed=3),
    ):
        step = SequenceStep(SequenceId("s"), KNOWN, 0, BLOCKS, SampleOrder(sampling, KNOWN, []))
        ours, theirs = (e.execute(StepPlan(0, (step,))).results[0].tokens for e in (executor, plain))
        assert ours == theirs


@pytest.mark.parametrize(
    "sampling",
    [
        SamplingParams(temperature=0, repetition_penalty=1.3),
        SamplingParams(temperature=0.8, presence_penalty=0.5, seed=2),
        SamplingParams(temperature=0.8, frequency_penalty=0.5, top_p=0.9, seed=3),
        SamplingParams(temperature=0, logit_bias=((9, 30.0),)),
        SamplingParams(temperature=0, logprobs=3),
        SamplingParams(temperature=0.9, min_tokens=5, stop_token_ids=tuple(range(6, 300)), seed=4),
        SamplingParams(temperature=0, prompt_logprobs=2),
    ],
)
def test_rules_that_the_library_does_not_know(folder: Path, sampling: SamplingParams) -> None:
    """In the same batch as a sequence that the library samples itself."""
    answers = []
    for executor in (native_executor(folder), torch_executor(folder)):
        output: list[int] = []
        other: list[int] = []
        found = []
        for number in range(8):
            fed = KNOWN if not number else output[-1:]
            blocks = [BlockId(i) for i in range(8)]
            start = 0 if not number else 6 + number
            wanted = sampling.prompt_logprobs if not number else None
            step = SequenceStep(
                SequenceId("s"), fed, start, blocks, SampleOrder(sampling, KNOWN, list(output)), prompt_logprobs=wanted,
                alone=number > 0,
            )  # fmt: skip
            beside = SequenceStep(
                SequenceId("t"), KNOWN if not number else other[-1:], start, [BlockId(20 + i) for i in range(8)],
                SampleOrder(SamplingParams(temperature=0.7, seed=9), KNOWN, list(other)), alone=number > 0,
            )  # fmt: skip
            first, second = executor.execute(StepPlan(number, (step, beside))).results
            output += first.tokens
            other += second.tokens
            found.append(
                (first.tokens, second.tokens, [_ids(entry) for entry in (*first.logprobs, *first.prompt_logprobs)])
            )
        answers.append(found)
    assert answers[0] == answers[1]


def _ids(entry: TokenLogprobs) -> tuple[int, tuple[int, ...]]:
    return entry.token, tuple(token for token, _ in entry.top)
