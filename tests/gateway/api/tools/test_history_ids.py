"""Ids of calls from another family or another API: templates get them in the form that they require."""

import re
from pathlib import Path
from typing import Any

import pytest

from serving.gateway.api.prompts import with_history_ids
from serving.gateway.api.tools.choose import FAMILIES
from tests.gateway.api.support import Harness, post
from tests.gateway.api.tools.conftest import tool_model

KIMI, MISTRAL = (FAMILIES[name].history_id for name in ("kimi-k2", "mistral"))
TEMPLATE = (
    "{% for m in messages %}<|user|>{{ m.role }} {% for c in m.tool_calls or [] %}[{{ c.id }}]{% endfor %}"
    "{% if m.tool_call_id %}({{ m.tool_call_id }}){% endif %}{{ m.content or '' }}{% endfor %}<|assistant|>"
)
FOREIGN = ("call_0a1b2c3d4e5f", "toolu_01A09q90qw90lq917835lq9", "chatcmpl-tool-7", "fc_1", "", "functions.x")


def turn(*calls: tuple[str | None, str]) -> dict[str, Any]:
    made = [{"type": "function", "function": {"name": name, "arguments": {}}, "id": own} for own, name in calls]
    return {"role": "assistant", "content": "", "tool_calls": made}


def result(own_id: str | None) -> dict[str, Any]:
    return {"role": "tool", "content": "1", "tool_call_id": own_id}


def ids(messages: list[dict[str, Any]]) -> list[list[str]]:
    return [[call["id"] for call in one["tool_calls"]] if "tool_calls" in one else [one["tool_call_id"]]
            for one in messages]  # fmt: skip


@pytest.mark.parametrize("own", FOREIGN)
def test_kimi_numbers_calls_through_the_conversation(own: str) -> None:
    assert KIMI is not None
    history = [turn((own, "x"), ("b", "y")), result("b"), result(own), turn((own, "x")), result(own)]
    assert ids(with_history_ids(history, KIMI)) == [
        ["functions.x:0", "functions.y:1"], ["functions.y:1"], ["functions.x:0"], ["functions.x:2"], ["functions.x:2"],
    ]  # fmt: skip


def test_kimis_own_ids_stay() -> None:
    assert KIMI is not None
    history = [turn(("functions.x:7", "x"), ("call_1", "y")), result("functions.x:7"), result("call_1")]
    assert ids(with_history_ids(history, KIMI)) == [["functions.x:7", "functions.y:1"], ["functions.x:7"],
                                                    ["functions.y:1"]]  # fmt: skip


@pytest.mark.parametrize("own", FOREIGN)
def test_mistral_has_nine_letters_or_digits(own: str) -> None:
    assert MISTRAL is not None
    history = [turn((own, "x"), ("call_2", "y")), result("call_2"), result(own)]
    (first, second), *results = ids(with_history_ids(history, MISTRAL))
    assert results == [[second], [first]]
    assert first != second
    assert all(re.fullmatch("[a-zA-Z0-9]{9}", one) for one in (first, second))
    longer = ids(with_history_ids([*history, turn((own, "x"))], MISTRAL))
    assert longer[:3] == [[first, second], *results], "a prefix of the conversation stays what it was"


def test_mistrals_own_ids_stay_whatever_dialect_they_went_through() -> None:
    assert MISTRAL is not None
    history = [turn(("aB3dE6gH9", "x"), ("toolu_bB3dE6gH9", "y"))]
    assert ids(with_history_ids(history, MISTRAL)) == [["aB3dE6gH9", "bB3dE6gH9"]]


def test_results_without_an_id_follow_the_order_of_calls() -> None:
    assert KIMI is not None
    history = [turn((None, "x"), (None, "y")), result(None), result("")]
    assert ids(with_history_ids(history, KIMI)) == [["functions.x:0", "functions.y:1"], ["functions.x:0"],
                                                    ["functions.y:1"]]  # fmt: skip
    assert ids(with_history_ids([result("gone")], KIMI)) == [["gone"]]


@pytest.mark.parametrize(
    ("markers", "form"),
    [(("<|tool_calls_section_begin|>",), r"functions\.x:0"), (("[TOOL_CALLS]",), "[a-zA-Z0-9]{9}"),
     (("<tool_call>",), "call_abc|toolu_abc")],
    ids=["kimi", "mistral", "hermes"],
)  # fmt: skip
def test_every_dialect_brings_its_history_into_it(tmp_path: Path, markers: tuple[str, ...], form: str) -> None:
    harness = Harness(tool_model(tmp_path, TEMPLATE + (f"{{# {markers[0]} #}}"), markers))
    call = {"id": "call_abc", "type": "function", "function": {"name": "x", "arguments": "{}"}}
    hi = {"role": "user", "content": "hi"}
    post(harness.app, "/v1/chat/completions", {"messages": [
        hi, {"role": "assistant", "tool_calls": [call]}, {"role": "tool", "tool_call_id": "call_abc", "content": "1"},
    ]})  # fmt: skip
    post(harness.app, "/v1/messages", {"max_tokens": 5, "messages": [
        hi, {"role": "assistant", "content": [{"type": "tool_use", "id": "toolu_abc", "name": "x", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_abc", "content": "1"}]},
    ]})  # fmt: skip
    post(harness.app, "/v1/responses", {"input": [
        hi, {"type": "function_call", "call_id": "call_abc", "name": "x", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "call_abc", "output": "1"},
    ]})  # fmt: skip
    assert len(harness.backend.jobs) == 3
    for job in harness.backend.jobs:
        prompt = harness.model.tokenizer.decode(job.sequences[0].prompt, skip_special_tokens=False)
        found = re.search(r"\[([^\]]*)\].*\(([^)]*)\)1", prompt)
        assert found is not None, prompt
        assert found[1] == found[2]
        assert re.fullmatch(form, found[1])
