"""Draft tokens with real tensors: the same output as without, and the correct distribution for sampled tokens."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from msgspec import structs

from serving.errors import EngineError
from serving.ids import BlockId, SequenceId
from serving.instance.core.settings import EngineSettings
from serving.instance.executors.torch_executor import TorchExecutor
from serving.model.kv_cache import KvCache
from serving.model.loader import load_model
from serving.model.model import Model
from serving.values.sequence import SamplingParams, SequenceSpec
from serving.values.step_plan import SampleOrder, SequenceStep, StepPlan
from tests.instance.torch_pair import prompt, run_alone, run_pair
from tests.model.random_checkpoint import write_random_checkpoint
from tests.model.reference import ReferenceGenerator
from tests.model.shapes import CHOOSING, SHARED_CHOICE

pytestmark = pytest.mark.usefixtures("every_guess")

DEMO = Path(__file__).parents[2] / "deploy/models/storyteller"
BASE = EngineSettings(block_tokens=4, max_step_tokens=24, max_sequences=4, max_model_len=96, watermark_blocks=0)
SAMPLINGS = (
    SamplingParams(temperature=0, max_tokens=16),
    SamplingParams(temperature=0.9, top_p=0.9, seed=3, max_tokens=20),
    SamplingParams(temperature=0.7, top_k=5, seed=4, max_tokens=14),
    SamplingParams(temperature=0.5, frequency_penalty=0.4, seed=5, max_tokens=8),
)


@pytest.fixture(scope="module", params=[{}, CHOOSING, SHARED_CHOICE], ids=["whole", "chosen", "chosen once"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models whose attention reads all tokens, or selects some in each layer or for several layers."""
    return write_random_checkpoint(tmp_path_factory.mktemp("model"), **request.param)


@pytest.fixture(scope="module")
def model(folder: Path) -> Model:
    return load_model(folder)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return load_model(write_random_checkpoint(tmp_path_factory.mktemp("plain")))


def orders() -> list[SequenceSpec]:
    """Two families of prompts with a common prefix, so that prefixes are found."""
    stems = prompt(26, 1), prompt(9, 2)
    return [
        SequenceSpec(SequenceId(f"s{i}"), (*stems[i % 2], *prompt(3 + i, 10 + i)), SAMPLINGS[i % 4]) for i in range(8)
    ]


def with_drafts(settings: EngineSettings, drafts: int | str) -> EngineSettings:
    if isinstance(drafts, str):
        return replace(settings, lookup_tokens=8)
    return replace(settings, draft_tokens=drafts, speculation=drafts > 0)


@pytest.fixture(scope="module")
def expected(folder: Path) -> dict[str, list[int]]:
    """One token at a time, without an engine."""
    reference = ReferenceGenerator(folder, max_tokens=96)
    return {spec.sequence_id: reference.generate(list(spec.prompt), spec.sampling) for spec in orders()}


@pytest.mark.parametrize("drafts", [0, 3, "lookup"])
def test_random_weights_give_the_same_tokens(model: Model, expected: dict[str, list[int]], drafts: int | str) -> None:
    """Nearly every draft token is wrong. Chunks of up to 24 tokens, prefix hits, mixed steps."""
    told = run_alone(model, with_drafts(BASE, drafts), 96, orders())
    assert told.output == expected
    assert told.prefix_hits > 0
    assert len(told.uses) > 40 or not drafts


@pytest.mark.parametrize("drafts", [2, "lookup"])
def test_preemption_gives_the_same_tokens(model: Model, expected: dict[str, list[int]], drafts: int | str) -> None:
    told = run_alone(model, with_drafts(BASE, drafts), 24, orders())
    assert told.preemptions > 0
    assert told.output == expected


@pytest.mark.parametrize("drafts", [1])
def test_a_handoff_gives_the_same_tokens(model: Model, expected: dict[str, list[int]], drafts: int) -> None:
    assert run_pair(model, with_drafts(BASE, drafts), 96, orders()).output == expected


@pytest.mark.parametrize("drafts", [2])
def test_a_resumed_sequence_gives_the_same_tokens(model: Model, expected: dict[str, list[int]], drafts: int) -> None:
    resumed = [structs.replace(one, output=tuple(expected[one.sequence_id][:5])) for one in orders()]
    told = run_alone(model, with_drafts(BASE, drafts), 96, resumed)
    assert told.output == {name: tokens[5:] for name, tokens in expected.items()}


@pytest.mark.nightly("tests/instance/test_torch_drafts.py::test_random_weights_give_the_same_tokens")
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_demo_model_guesses_well_and_says_the_same(temperature: float) -> None:
    from tokenizers import Tokenizer

    demo, reader = load_model(DEMO), Tokenizer.from_file(str(DEMO / "tokenizer.json"))
    sampling = SamplingParams(temperature=temperature, max_tokens=60, seed=7)
    beginnings = ["Once upon a time there was a little fox who", "One day a bird found a shiny stone"]
    specs = [SequenceSpec(SequenceId(text), tuple(reader.encode(text).ids), sampling) for text in beginnings]
    settings = replace(BASE, max_model_len=128, block_tokens=16)
    plain = run_alone(demo, settings, 32, specs)
    for drafts in (1, 3):
        told = run_alone(demo, with_drafts(settings, drafts), 32, specs)
        assert told.output == plain.output
        if drafts == 1:
            assert told.acceptance > (0.7 if temperature == 0 else 0.35)
    pair = run_pair(demo, with_drafts(settings, 2), 32, specs)
    assert pair.output == plain.output


def test_accepted_and_extra_tokens_follow_the_models_law(plain: Model) -> None:
    """Chi-square over 1,500 seeds: the first token, and the second one after an accepted draft token."""
    sampling = SamplingParams(temperature=1.3, top_k=6)
    tokens, count, size = prompt(3, 40), 1500, 4
    cache = KvCache(plain.config, count, size, plain.dtype, num_layers=len(plain.config.layers) + 1)
    executor = TorchExecutor(plain, cache)
    first = law(plain, tokens, sampling)
    guess = max(first, key=lambda token: first[token])
    executor.execute(StepPlan(0, tuple(feed(i, tokens[:2], 0) for i in range(count))))
    cache.tensor[:, :, 2:] = 0.0
    steps = tuple(feed(i, tokens[2:], 2, draws(tokens, replace_seed(sampling, i)), (guess,)) for i in range(count))
    given = [result.tokens for result in executor.execute(StepPlan(1, steps)).results]
    assert p_value([one[0] for one in given], first) > 0.001
    accepted = [one for one in given if len(one) == 2]
    assert {one[0] for one in accepted} == {guess}
    assert len(accepted) == sum(one[0] == guess for one in given) > 250
    assert p_value([one[1] for one in accepted], law(plain, [*tokens, guess], sampling)) > 0.001


def feed(
    index: int, tokens: list[int], start: int, sample: SampleOrder | None = None, drafts: tuple[int, ...] = ()
) -> SequenceStep:
    return SequenceStep(SequenceId(str(index)), tokens, start, (BlockId(index),), sample, drafts=drafts)


def draws(tokens: list[int], sampling: SamplingParams) -> SampleOrder:
    return SampleOrder(sampling, tokens, [])


def replace_seed(sampling: SamplingParams, seed: int) -> SamplingParams:
    return structs.replace(sampling, seed=seed)


def law(model: Model, tokens: list[int], sampling: SamplingParams) -> dict[int, float]:
    """The distribution of the next token, written out."""
    from tests.model.paged import PagedRunner

    logits = PagedRunner(model).step([("s", tokens)])[0][-1].double() / sampling.temperature
    kept = logits.topk(sampling.top_k)
    chances = kept.values.softmax(-1)
    return dict(zip(kept.indices.tolist(), chances.tolist(), strict=True))


def p_value(seen: list[int], chances: dict[int, float]) -> float:
    """Chi-square goodness of fit; an impossible token has probability 0."""
    if not set(seen) <= set(chances):
        return 0.0
    expected = {token: chance * len(seen) for token, chance in chances.items()}
    assert min(expected.values()) >= 5
    statistic = sum((seen.count(token) - mean) ** 2 / mean for token, mean in expected.items())
    half = torch.tensor([(len(chances) - 1) / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(half, torch.tensor([statistic / 2], dtype=torch.float64)))


def test_guesses_need_a_draft_layer(plain: Model) -> None:
    executor = TorchExecutor(plain, KvCache(plain.config, 4, 4, plain.dtype))
    step = SequenceStep(SequenceId("s"), [9], 0, (BlockId(0),), draws([9], SAMPLINGS[0]), next_drafts=1)
    with pytest.raises(EngineError, match="no draft layer"):
        executor.execute(StepPlan(0, (step,)))


def test_a_prompt_without_a_draw_leaves_its_last_row_open(plain: Model) -> None:
    """With `max_tokens = 0` the token after the last prompt token is unknown."""
    cache = KvCache(plain.config, 4, 8, plain.dtype, num_layers=len(plain.config.layers) + 1)
    step = SequenceStep(SequenceId("s"), prompt(6, 3), 0, (BlockId(2),), None, next_drafts=0)
    TorchExecutor(plain, cache).execute(StepPlan(0, (step,)))
    written = cache.tensor[2].abs().sum(-1) > 0
    assert written[:-1, :6].all()
    assert written[-1].tolist() == [True] * 5 + [False] * 3


def test_a_single_token_without_a_draw_leaves_nothing_to_do(plain: Model) -> None:
    cache = KvCache(plain.config, 4, 8, plain.dtype, num_layers=len(plain.config.layers) + 1)
    step = SequenceStep(SequenceId("s"), [9], 0, (BlockId(2),), None, next_drafts=0)
    (result,) = TorchExecutor(plain, cache).execute(StepPlan(0, (step,))).results
    assert (result.tokens, result.drafts) == ((), ())
    assert not cache.tensor[2, -1].any()
