"""Outputs recorded from models, parsed as recorded, and independent of the cuts between pieces."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serving.gateway.api.tools.family import OutputParser
from serving.gateway.api.tools.reader import Part
from tests.cases.tool_fixtures import Recorded, recorded
from tests.cases.tool_parsing import Parsed, put_together

_CUT = (
    "cut off within a call: its arguments go out as they come, as OpenAI's do; the finish reason `length` tells that "
    "they are not whole; the record wants no call at all, which a stream could only give by holding all of it back"
)
OTHERWISE: Mapping[str, str] = {
    **dict.fromkeys(
        (
            "deepseek/v3-truncated-mid-arguments",
            "deepseek/v31-truncated-mid-arguments",
            "deepseek/v32-truncated-mid-arguments",
            "deepseek/v4-truncated-mid-arguments",
            "deepseek/v41-truncated-mid-arguments",
            "glm/glm47-truncated-inside-arg-value",
            "glm/glm47-truncated-before-close-call",
            "glm/glm45-truncated-after-arg-key",
            "gpt-oss/harmony-truncated-in-arguments",
            "kimi/k26-truncated-inside-arguments",
            "llama/l3-truncated-inside-parameters",
            "mistral/v13think-truncated-in-arguments",
            "qwen3-hermes/bug-sglang-30480-truncated-mid-arguments",
            "qwen3-hermes/truncated-mid-arguments-no-thinking",
            "qwen3-hermes/truncated-mid-arguments-thinking",
            "qwen3-hermes/truncated-second-parallel-call",
            "qwen3-xml/q38-truncated-in-parameter",
        ),
        _CUT,
    ),
    "qwen3-hermes/vllm-invalid-json-missing-brace": (
        "cut off behind the arguments, which are whole: they have gone out, though the object around them never ended"
    ),
    "deepseek/vllm-v3-malformed-missing-brace": (
        "the arguments lack a brace, which shows when the call ends: they have gone out by then. No grammar allows it"
    ),
}
"""Records that are read otherwise on purpose, and why."""


def read(record: Recorded, cuts: Iterator[int] | None = None) -> Parsed:
    """Parse the whole output, its text in pieces of these lengths."""
    parser = OutputParser(record.family, record.family.marks_of(record.tokens), record.tools, opened=record.opened)
    parts: list[Part] = []
    for text, is_token in record.pieces:
        if is_token and record.tokens[text] in record.family.marks_of(record.tokens).of_token:
            parts += parser.token(record.tokens[text])
        else:
            for piece in _cut(text, cuts):
                parts += parser.text(piece)
    return put_together([*parts, *parser.end()])


def _cut(text: str, cuts: Iterator[int] | None) -> Iterator[str]:
    while text:
        size = len(text) if cuts is None else next(cuts)
        yield text[:size]
        text = text[size:]


def _meant(parsed: Parsed) -> tuple[str | None, str | None, tuple[tuple[str, Any], ...]]:
    content, thought, calls = parsed
    return content, thought, tuple((name, json.loads(arguments)) for name, arguments in calls)


def _as_recorded(record: Recorded) -> bool:
    parsed = read(record)
    if record.expected is None:
        return not parsed[2]
    try:
        return _meant(parsed) == record.expected
    except ValueError:
        return False


def test_outputs_are_read_as_recorded_but_for_those_that_are_listed_with_their_reason() -> None:
    assert {record.name for record in recorded() if not _as_recorded(record)} == set(OTHERWISE)
    assert len(OTHERWISE) <= 0.05 * len(recorded())


@pytest.mark.parametrize("name", OTHERWISE)
def test_what_is_read_otherwise_keeps_the_calls_before_it_and_shows_no_marker(name: str) -> None:
    (record,) = [one for one in recorded() if one.name == name]
    content, _, calls = read(record)
    assert calls
    for text in (content or "", *(arguments for _, arguments in calls)):
        assert not any(mark in text for mark in record.family.marks)


@given(st.data())
def test_an_output_is_read_alike_however_it_is_cut(data: st.DataObject) -> None:
    record = data.draw(st.sampled_from(recorded()))
    seed = data.draw(st.lists(st.integers(1, 12), min_size=1, max_size=40))
    assert read(record, _forever(seed)) == read(record)


@given(st.data())
@settings(max_examples=settings().max_examples // 2)
def test_markers_that_are_no_tokens_are_found_however_the_text_is_cut(data: st.DataObject) -> None:
    record = data.draw(st.sampled_from(recorded()))
    text = "".join(text for text, _ in record.pieces)
    spelled = replace(record, tokens={}, pieces=((text, False),))
    seed = data.draw(st.lists(st.integers(1, 12), min_size=1, max_size=40))
    assert read(spelled, _forever(seed)) == read(spelled)


def test_an_output_is_read_alike_character_by_character() -> None:
    for record in recorded():
        assert read(record, _forever([1])) == read(record), record.name


def _forever(sizes: list[int]) -> Iterator[int]:
    while True:
        yield from sizes
