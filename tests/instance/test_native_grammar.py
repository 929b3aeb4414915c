"""Grammars in native steps: the tokens of externally built masks, drafted or not, planned ahead or not."""

import json
from dataclasses import replace as replace_settings
from pathlib import Path

import jsonschema
import pytest
from msgspec.structs import replace

from serving.gateway.api.tokenizer import Tokenizer
from serving.grammar.guidance import GuidanceRoute, PythonRoute
from serving.ids import BlockId, SequenceId
from serving.instance.core.settings import EngineSettings
from serving.instance.executors.native_executor import NativeExecutor
from serving.instance.executors.native_grammar import route_for_steps
from serving.values.sequence import FinishReason, Grammar, GrammarKind, SamplingParams, SequenceSpec
from serving.values.step_plan import UNKNOWN, SampleOrder, SequenceStep, StepPlan
from tests.grammar.random_schemas import random_schema
from tests.instance.native_engine import run_engine
from tests.instance.native_grammars import matchers_of
from tests.instance.native_pair import BLOCK_TOKENS, Feeder, native_executor, prompt
from tests.live.workload import EOS, GRAMMARS, LETTERS
from tests.model.random_checkpoint import write_random_checkpoint

BLOCKS = 190
CLASH = Grammar(GrammarKind.LARK, 'start: "abcdef" X\nX: /[a-z]{2}/ & /[0-9]+/')
"""Allows no text after its first letters."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_random_checkpoint(tmp_path_factory.mktemp("model"))


def executor(folder: Path, route: GuidanceRoute, forced: int = 0) -> NativeExecutor:
    return native_executor(folder, matchers=matchers_of(folder, route), most_forced=forced)


def specs() -> list[SequenceSpec]:
    """Every grammar, greedy and sampled; plain sequences between them, and some that return their logits."""
    base = SamplingParams(max_tokens=30, stop_token_ids=(EOS,))
    rules = [
        replace(base, temperature=0.0),
        replace(base, temperature=1.0, seed=5),
        replace(base, temperature=0.7, seed=6, top_p=0.9, top_k=40),
    ]
    made = [replace(rules[i % 3], grammar=grammar, seed=i) for i, grammar in enumerate((*GRAMMARS, *GRAMMARS[::-1]))]
    made[3:3] = [rules[0], replace(rules[1], grammar=LETTERS, logprobs=1), replace(rules[1], presence_penalty=0.4)]
    return [SequenceSpec(SequenceId(str(i)), tuple(prompt(4 + 3 * i, i)), sampling) for i, sampling in enumerate(made)]


def settings(drafts: int, forced: int = 0, lookup: int = 0) -> EngineSettings:
    return EngineSettings(
        block_tokens=BLOCK_TOKENS,
        max_step_tokens=60,
        max_sequences=16,
        draft_tokens=drafts,
        speculation=drafts > 0,
        forced_tokens=forced,
        lookup_tokens=lookup,
    )


@pytest.mark.usefixtures("every_guess")
@pytest.mark.parametrize(("drafts", "forced", "lookup"), [(0, 0, 0), (3, 0, 0), (3, 8, 0), (0, 0, 8), (0, 8, 8)])
def test_both_routes_give_the_same_tokens(folder: Path, drafts: int, forced: int, lookup: int) -> None:
    wanted, ends, _, _ = run_engine(executor(folder, PythonRoute()), settings(0), BLOCKS, specs(), ahead=False)
    assert {ends[spec.sequence_id] for spec in specs()} == {FinishReason.STOP, FinishReason.LENGTH}
    inside = executor(folder, route_for_steps(), forced)
    for ahead in (False, True):
        planned = settings(drafts, forced, lookup)
        found, other_ends, engine, prepared = run_engine(inside, planned, BLOCKS, specs(), ahead=ahead)
        assert found == wanted
        assert other_ends == ends
        if not forced:  # else a sequence has draft tokens at every step
            assert (prepared > 0) == (ahead and not drafts and not lookup)
        if drafts or forced or lookup:
            assert engine.snapshot(0.0).draft_tokens_total > 30


def test_forced_tokens_are_right_guesses(folder: Path) -> None:
    one = SequenceSpec(
        SequenceId("one"),
        tuple(prompt(9)),
        SamplingParams(max_tokens=60, temperature=1.0, seed=2, grammar=GRAMMARS[0], stop_token_ids=(EOS,)),
    )
    steps = {}
    for most in (0, 8):
        found, _, engine, prepared = run_engine(
            executor(folder, route_for_steps(), most), settings(0, most), BLOCKS, [one], ahead=True
        )
        assert prepared > 5, "steps are planned ahead where nothing is forced"
        state = engine.snapshot(0.0)
        steps[most] = len(found[one.sequence_id]) - sum(state.accepted_drafts_total)
        assert sum(state.accepted_drafts_total) == state.draft_tokens_total
    assert steps[8] < 0.7 * steps[0]


def test_few_blocks_preempt_and_matchers_are_made_anew(folder: Path) -> None:
    wanted, _, _, _ = run_engine(executor(folder, PythonRoute()), settings(0), BLOCKS, specs(), ahead=False)
    inside = executor(folder, route_for_steps(), 8)
    found, _, engine, _ = run_engine(inside, settings(3, 8), 36, specs(), ahead=False)
    assert engine.scheduler.preemptions > 0
    assert found == wanted


@pytest.mark.parametrize("ahead", [False, True])
def test_a_grammar_without_a_way_on_ends_its_own_sequence_only(folder: Path, ahead: bool) -> None:
    inside = executor(folder, route_for_steps())
    stuck = SequenceSpec(
        SequenceId("stuck"), tuple(prompt(5)), SamplingParams(temperature=0, grammar=CLASH, max_tokens=40)
    )
    wrong = replace(stuck, sequence_id=SequenceId("wrong"), output=(300, 301))
    others = specs()[:5]
    wanted, _, _, _ = run_engine(inside, settings(0), BLOCKS, others, ahead=False)
    found, ends, _, _ = run_engine(inside, settings(0), BLOCKS, [others[0], stuck, wrong, *others[1:]], ahead=ahead)
    assert {name: found[name] for name in wanted} == wanted
    assert ends[stuck.sequence_id] is ends[wrong.sequence_id] is FinishReason.GRAMMAR
    assert len(found[stuck.sequence_id]) > 3
    assert found[wrong.sequence_id] == ()


def following(number: int, order: SampleOrder) -> StepPlan:
    step = SequenceStep(SequenceId("s0"), (UNKNOWN,), 6, [BlockId(8 * i) for i in range(4)], order, alone=True)
    return StepPlan(number, (step,))


def test_a_prepared_step_needs_no_output_but_what_was_drawn(folder: Path) -> None:
    """Neither the stored matcher nor the engine's record of the last token."""
    inside, plain = executor(folder, route_for_steps()), executor(folder, PythonRoute())
    sampling = SamplingParams(temperature=1.0, seed=3, grammar=GRAMMARS[0], stop_token_ids=(EOS,))
    other = Feeder(0, prompt(6), sampling)
    for number in range(2):
        step = other.step()
        other.take(step, plain.execute(StepPlan(number, (step,))).results[0])
    for kept in (True, False):
        one = Feeder(0, prompt(6), sampling)
        step = one.step()
        run = inside.prepare(following(1, SampleOrder(sampling, one.prompt, one.output)))
        one.take(step, inside.execute(StepPlan(0, (step,))).results[0])
        if not kept:
            one.output.clear()
            assert inside._matchers is not None
            inside._matchers.forget([SequenceId("s0")])
        assert run is not None
        assert run().results[0].tokens == tuple(other.output[1:2])


def test_outputs_over_random_schemas_are_valid(folder: Path) -> None:
    """All outputs that are not cut by their length."""
    schemas = [random_schema(number) for number in range(60)]
    base = SamplingParams(max_tokens=300, temperature=1.0, stop_token_ids=(EOS,))
    asks = [
        SequenceSpec(
            SequenceId(str(i)),
            tuple(prompt(3, i)),
            replace(base, seed=i, grammar=Grammar(GrammarKind.JSON_SCHEMA, json.dumps(schema))),
        )
        for i, schema in enumerate(schemas)
    ]
    inside = native_executor(
        folder, matchers=matchers_of(folder, route_for_steps()), most_forced=8, blocks=2600, max_rows=300
    )
    rules = replace_settings(settings(0, 8), max_step_tokens=300, max_sequences=32)
    outputs, ends, _, _ = run_engine(inside, rules, 2600, asks, ahead=True)
    tokenizer, whole = Tokenizer.from_folder(folder), 0
    for spec, schema in zip(asks, schemas, strict=True):
        if ends[spec.sequence_id] is FinishReason.STOP:
            whole += 1
            jsonschema.validate(json.loads(tokenizer.decode(outputs[spec.sequence_id])), schema)
        else:
            assert ends[spec.sequence_id] is FinishReason.LENGTH
    assert whole > 45
