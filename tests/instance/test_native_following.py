"""Native steps that were laid out before their tokens were known."""

from pathlib import Path

import pytest

from serving.errors import EngineError
from serving.ids import BlockId, SequenceId
from serving.instance.core.ports import PreparingExecutor
from serving.instance.core.settings import EngineSettings
from serving.values.sequence import SamplingParams, SequenceSpec
from serving.values.step_plan import UNKNOWN, SampleOrder, SequenceStep, StepPlan
from tests.instance.native_engine import run_engine
from tests.instance.native_pair import BLOCK_TOKENS, GREEDY, native_executor, prompt
from tests.model.random_checkpoint import write_random_checkpoint

BLOCKS = 100
SAMPLINGS = (
    SamplingParams(temperature=0, max_tokens=30),
    SamplingParams(temperature=1.0, seed=5, max_tokens=30),
    SamplingParams(temperature=0.8, top_p=0.9, seed=6, max_tokens=24),
    SamplingParams(temperature=1.5, top_k=40, min_p=0.01, seed=7, max_tokens=27),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_random_checkpoint(tmp_path_factory.mktemp("model"))


def outputs(folder: Path, *, ahead: bool) -> tuple[list[tuple[int, ...]], int]:
    """Output of each sequence, and the number of prepared steps."""
    settings = EngineSettings(block_tokens=BLOCK_TOKENS, max_step_tokens=60, max_sequences=8)
    specs = [
        SequenceSpec(SequenceId(str(index)), tuple(prompt(5 + 6 * index, index)), sampling)
        for index, sampling in enumerate(SAMPLINGS)
    ]
    found, _, _, prepared = run_engine(native_executor(folder), settings, BLOCKS, specs, ahead=ahead)
    return [found[spec.sequence_id] for spec in specs], prepared


def test_tokens_are_the_same_greedy_and_sampled(folder: Path) -> None:
    plain, prepared = outputs(folder, ahead=False), outputs(folder, ahead=True)
    assert prepared[0] == plain[0]
    assert [len(tokens) for tokens in plain[0]] == [30, 30, 24, 27]
    assert (plain[1], prepared[1]) == (0, 26), "all but the prompts' two, and the last of 24, 27 and 30 tokens"


def following(sampling: SamplingParams) -> StepPlan:
    """A plan that follows step 0."""
    order = SampleOrder(sampling, prompt(6), [])
    step = SequenceStep(SequenceId("s"), (UNKNOWN,), 6, [BlockId(0), BlockId(1)], order, alone=True)
    return StepPlan(1, (step,))


@pytest.mark.parametrize(
    "sampling", [SamplingParams(temperature=0, logprobs=1), SamplingParams(temperature=0.7, presence_penalty=1.0)]
)
def test_what_needs_more_than_tokens_is_not_prepared(folder: Path, sampling: SamplingParams) -> None:
    executor = native_executor(folder)
    assert isinstance(executor, PreparingExecutor)
    assert executor.prepare(following(sampling)) is None


def test_a_prepared_step_runs_behind_its_own_only(folder: Path) -> None:
    executor = native_executor(folder)
    run = executor.prepare(following(GREEDY))
    assert run is not None
    with pytest.raises(EngineError, match="prepared to follow step 0"):
        run()
    with pytest.raises(EngineError):
        executor.execute(following(GREEDY))
