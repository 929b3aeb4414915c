"""The computing executors: each sequence of a mixed step gets its result of a separate run."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch

from serving.errors import EngineError
from serving.ids import BlockId, SequenceId
from serving.instance.core.ports import StepExecutor
from serving.instance.executors.native_executor import NativeExecutor
from serving.instance.executors.torch_executor import TorchExecutor
from serving.model.kv_cache import KvCache
from serving.model.loader import load_model
from serving.model.model import Model
from serving.model.native import library
from serving.values.sequence import SamplingParams, TokenLogprobs
from serving.values.step_plan import SampleOrder, SequenceResult, SequenceStep, StepPlan
from tests.instance.torch_pair import prompt
from tests.model.random_checkpoint import write_random_checkpoint
from tests.model.reference import ReferenceGenerator

BLOCK_TOKENS = 4
GREEDY = SamplingParams(temperature=0, max_tokens=12)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_random_checkpoint(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def models(folder: Path) -> dict[str, Model]:
    """Models by executor."""
    found = {"torch": load_model(folder)}
    if library.load() is not None:
        found["native"] = load_model(folder, native=True)
    return found


MakeExecutor = Callable[[int], StepExecutor]


@pytest.fixture(params=["torch", "native"])
def make_executor(request: pytest.FixtureRequest, models: dict[str, Model]) -> MakeExecutor:
    """Factory of executors over a cache of this many blocks."""
    model = models.get(request.param)
    if model is None:
        pytest.skip("there is no native library here")

    def make(blocks: int) -> StepExecutor:
        cache = KvCache(model.config, blocks, BLOCK_TOKENS, model.dtype)
        if request.param == "torch":
            return TorchExecutor(model, cache)
        return NativeExecutor(model, cache, threads=2, max_rows=320)

    return make


@pytest.fixture
def executor(make_executor: MakeExecutor) -> StepExecutor:
    return make_executor(64)


def table(first: int, tokens: int) -> list[BlockId]:
    """Blocks first, first + 3, first + 6 ...: scattered, and free of overlaps for first in 0, 1, 2."""
    return [BlockId(first + 3 * i) for i in range(-(-tokens // BLOCK_TOKENS))]


class Runner:
    """One sequence driven by hand: chunks of its prompt, then decode steps."""

    def __init__(self, name: str, first_block: int, prompt: Sequence[int], sampling: SamplingParams) -> None:
        self.name = SequenceId(name)
        self.first_block = first_block
        self.prompt = list(prompt)
        self.sampling = sampling
        self.output: list[int] = []
        self.fed = 0

    def step(self, size: int) -> SequenceStep:
        known = [*self.prompt, *self.output]
        tokens = known[self.fed : self.fed + size]
        last = self.fed + len(tokens) == len(known)
        order = SampleOrder(self.sampling, self.prompt, self.output) if last else None
        blocks, alone = table(self.first_block, self.fed + len(tokens)), self.fed >= len(self.prompt)
        return SequenceStep(self.name, tokens, self.fed, blocks, order, alone=alone)

    def take(self, step: SequenceStep, result: SequenceResult) -> None:
        assert result.sequence_id == self.name
        self.fed += len(step.tokens)
        self.output += result.tokens


@pytest.mark.parametrize("sizes", [(5, 9, 30), (1, 1, 1), (2, 4, 3), (40, 6, 1)])
def test_mixed_steps_equal_lone_references(executor: StepExecutor, folder: Path, sizes: tuple[int, ...]) -> None:
    samplings = [GREEDY, SamplingParams(temperature=0.9, top_p=0.9, seed=3), GREEDY]
    runners = [Runner(f"s{i}", i, prompt(9 + 11 * i, i), samplings[i]) for i in range(3)]
    number = 0
    while any(len(r.output) < 12 for r in runners):
        steps = [r.step(size) for r, size in zip(runners, sizes, strict=True)]
        result = executor.execute(StepPlan(number, tuple(steps)))
        assert result.step == number
        assert result.elapsed_s > 0
        for runner, step, one in zip(runners, steps, result.results, strict=True):
            runner.take(step, one)
        number += 1
    reference = ReferenceGenerator(folder, max_tokens=256)
    for runner in runners:
        expected = reference.generate(runner.prompt, SamplingParams(
            temperature=runner.sampling.temperature, top_p=runner.sampling.top_p, seed=runner.sampling.seed,
            max_tokens=len(runner.output),
        ))  # fmt: skip
        assert runner.output == expected


def test_unfinished_chunks_give_no_token(executor: StepExecutor) -> None:
    runner = Runner("s", 0, prompt(20, 0), GREEDY)
    result = executor.execute(StepPlan(0, (runner.step(8),)))
    assert result.results == (SequenceResult(SequenceId("s")),)


def test_an_empty_plan_is_a_step(executor: StepExecutor) -> None:
    assert executor.execute(StepPlan(3, ())).results == ()


def test_logprobs_of_sampled_tokens(executor: StepExecutor, folder: Path) -> None:
    tokens = prompt(10, 5)
    runner = Runner("s", 0, tokens, SamplingParams(temperature=0, logprobs=3))
    found = executor.execute(StepPlan(0, (runner.step(10),))).results[0]
    expected = ReferenceGenerator(folder, max_tokens=64).logits(tokens)[-1].log_softmax(-1)
    assert found.logprobs[0].token == found.tokens[0] == int(expected.argmax())
    assert found.logprobs[0].logprob == pytest.approx(float(expected.max()), abs=1e-4)
    assert [token for token, _ in found.logprobs[0].top] == expected.topk(3).indices.tolist()


@pytest.mark.parametrize("sizes", [(300,), (290, 1, 9)])
def test_prompt_logprobs_in_chunks(make_executor: MakeExecutor, folder: Path, sizes: tuple[int, ...]) -> None:
    executor = make_executor(240)
    tokens = prompt(300, 6)
    found: list[TokenLogprobs] = []
    start = 0
    for number, size in enumerate(sizes):
        stop = start + size
        following = tokens[stop] if stop < len(tokens) else None
        step = SequenceStep(
            SequenceId("s"), tokens[start:stop], start, table(0, stop), None,
            prompt_logprobs=2, next_prompt_token=following,
        )  # fmt: skip
        found += executor.execute(StepPlan(number, (step,))).results[0].prompt_logprobs
        start = stop
    expected = ReferenceGenerator(folder, max_tokens=512).logits(tokens).log_softmax(-1)
    assert [f.token for f in found] == tokens[1:]
    for position, one in enumerate(found):
        assert one.logprob == pytest.approx(float(expected[position, one.token]), abs=2e-4)
        assert one.top[0][0] == int(expected[position].argmax())
        assert len(one.top) == 2


def test_cached_prefix_of_another_sequence_is_used(executor: StepExecutor, folder: Path) -> None:
    """Blocks filled by one sequence serve another with the same prefix."""
    shared, tail = prompt(16, 7), prompt(5, 8)
    first = Runner("a", 0, shared, GREEDY)
    executor.execute(StepPlan(0, (first.step(16),)))
    blocks = [*table(0, 16), *table(1, 8)]
    order = SampleOrder(GREEDY, [*shared, *tail], [])
    step = SequenceStep(SequenceId("b"), tail, 16, blocks, order)
    found = executor.execute(StepPlan(1, (step,))).results[0].tokens
    reference = ReferenceGenerator(folder, max_tokens=64)
    assert list(found) == reference.generate([*shared, *tail], SamplingParams(temperature=0, max_tokens=1))


def test_block_tables_may_cover_more_than_needed(executor: StepExecutor, folder: Path) -> None:
    tokens = prompt(9, 9)
    order = SampleOrder(GREEDY, tokens, [])
    step = SequenceStep(SequenceId("s"), tokens, 0, table(0, 40), order)
    found = executor.execute(StepPlan(0, (step,))).results[0].tokens
    reference = ReferenceGenerator(folder, max_tokens=64)
    assert list(found) == reference.generate(tokens, SamplingParams(temperature=0, max_tokens=1))


def test_failures_become_typed_errors(executor: StepExecutor) -> None:
    step = SequenceStep(SequenceId("s"), [999_999], 0, table(0, 1), None)
    with pytest.raises(EngineError, match="step 7 failed"):
        executor.execute(StepPlan(7, (step,)))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_cuda_equals_cpu(folder: Path) -> None:
    model = load_model(folder, device="cuda")
    executor = TorchExecutor(model, KvCache(model.config, 64, BLOCK_TOKENS, model.dtype, "cuda"))
    runner = Runner("s", 0, prompt(20, 1), GREEDY)
    while len(runner.output) < 10:
        step = runner.step(8)
        runner.take(step, executor.execute(StepPlan(0, (step,))).results[0])
    reference = ReferenceGenerator(folder, max_tokens=64)
    assert runner.output == reference.generate(runner.prompt, SamplingParams(temperature=0, max_tokens=10))
