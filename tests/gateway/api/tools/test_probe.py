"""The probe of canitoolcall against the bundled model's template and vocabulary, with forced calls."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from canitoolcall.probe import BUILTIN_SCENARIOS, Scenario, chat_response, evaluate

from serving.gateway.api.settings import ServedModel
from serving.grammar.matcher import Matcher
from serving.values.sequence import SequenceSpec
from tests.cases.tool_vocabulary import STORYTELLER
from tests.fakes.backend import Script
from tests.gateway.api.support import Harness, running_server

FORCED: Mapping[str, str] = {
    scenario.id: "required"
    for scenario in BUILTIN_SCENARIOS
    if scenario.expect.tool_names and scenario.id not in ("parallel-calls", "unicode-args", "forced-tool-choice")
}
"""Scenarios that need a call, with any content: this model's output has no meaning."""
SCENARIOS = [
    replace(one, tool_choice=FORCED.get(one.id, one.tool_choice))
    for one in BUILTIN_SCENARIOS
    if one.id not in ("parallel-calls", "unicode-args")
]


@pytest.fixture(scope="module")
def storyteller() -> Iterator[str]:
    """Base URL of the storyteller's endpoint, whose tokens are drawn at random from the permitted ones."""
    model = ServedModel.from_folder(STORYTELLER, names=("storyteller",), max_model_len=2048, created=7)
    harness = Harness(model)
    harness.script_of = lambda spec: Script(tuple(drawn(model, spec)))
    with running_server(harness.app) as url:
        yield f"{url}/v1"


def drawn(model: ServedModel, spec: SequenceSpec) -> list[int]:
    """An output of the grammar, or a word where there is no grammar; strings in it end soon."""
    grammar, end = spec.sampling.grammar, model.eos_ids[0]
    words = model.tokenizer.encode("It is sunny.", add_special_tokens=False)
    if grammar is None:
        return [*words, end]
    random = np.random.default_rng(spec.sampling.seed)
    matcher = Matcher(model.grammars.fresh(grammar), model.token_limit, spec.sampling.stop_token_ids)
    output: list[int] = []
    while not output or output[-1] != end:
        allowed = matcher.allowed()
        choices = np.flatnonzero(allowed)
        if all(allowed[word] for word in words) and len(output) < len(words):
            token = words[len(output)]
        elif allowed[end]:
            token = end
        else:
            closing = [int(one) for one in choices if '"' in model.tokenizer.token_string(int(one))]
            token = int(random.choice(closing if closing and random.random() < 0.5 else choices))
        matcher.take((token,))
        output.append(token)
    return output


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.id)
@pytest.mark.parametrize("stream", [False, True])
def test_a_probe_with_forced_choice_passes(storyteller: str, scenario: Scenario, stream: bool) -> None:
    response = chat_response(storyteller, "storyteller", scenario, stream=stream)
    assert (response.problems, response.warnings) == ((), ())
    status, detail = evaluate(scenario, response.result)
    assert status == "pass", detail


def test_every_scenario_that_needs_a_call_is_forced_or_left_out_by_name() -> None:
    left: Any = {one.id for one in BUILTIN_SCENARIOS} - {one.id for one in SCENARIOS}
    assert left == {"parallel-calls", "unicode-args"}
