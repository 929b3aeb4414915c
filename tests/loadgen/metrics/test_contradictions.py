"""Responses that contradict their own usage: a warning, and a count for the exit status."""

from typing import Any

import pytest

from loadgen.metrics.cautions import contradiction
from loadgen.metrics.repetitions import merge
from loadgen.metrics.summary import summarize
from loadgen.metrics.verdict import GeneratorFacts, Identity
from loadgen.record import RequestRecord
from loadgen.result import RunResult
from tests.loadgen.metrics.stamps import failed, record

TIMES = [2.0 + 0.1 * number for number in range(128)]


def summary(records: list[RequestRecord]) -> RunResult:
    return summarize(records, facts=GeneratorFacts(), slo=None, percentiles=[], identity=Identity(url="http://h"))


@pytest.mark.parametrize(
    ("chunks", "fields", "words"),
    [
        (TIMES, {"output_tokens": 64}, "128 chunks of text for 64 tokens"),
        (TIMES[:1], {"output_tokens": 0}, "1 chunks of text for 0 tokens"),
        (TIMES[:4], {"output_tokens": 8, "tokens": [4, 4, 4, 4]}, "chunks with 16 tokens, and 8 in usage"),
        ([], {"output_tokens": 64}, "no text for 64 tokens"),
        ([], {"output_tokens": 0, "content_chars": 9}, "9 characters for no token"),
        (TIMES[:2], {"input_tokens": 5, "cached_tokens": 6}, "6 cached tokens of 5"),
        (TIMES[:2], {"reasoning_tokens": 3}, "3 tokens of reasoning among 2"),
    ],
)
def test_what_contradicts_itself_is_said_and_counted(chunks: list[float], fields: dict[str, Any], words: str) -> None:
    wrong = record(chunks, **fields)
    assert words in contradiction(wrong)
    found = summary([record(TIMES[:3]), wrong, wrong, failed()])
    assert found.contradictions == 2
    (warning,) = [one for one in found.warnings if "contradict" in one]
    assert warning.startswith("2 of 3 answers")
    assert words in warning
    assert merge([found, found], [[wrong], [wrong]]).contradictions == 4


@pytest.mark.parametrize(
    ("chunks", "fields"),
    [
        (TIMES, {}),
        (TIMES, {"output_tokens": 127}),
        (TIMES[:16], {"output_tokens": 64}),
        (TIMES[:2], {"output_tokens": 9, "tokens": [4, 4]}),
        (TIMES, {"output_tokens": None}),
        ([], {"output_tokens": 1}),
        ([], {"output_tokens": 0}),
        ([], {"output_tokens": 64, "content_chars": 200}),
        ([], {"output_tokens": 64, "finish_reason": "tool_calls"}),
        (TIMES[:2], {"cached_tokens": 10, "reasoning_tokens": 2}),
    ],
)
def test_what_does_not_is_not(chunks: list[float], fields: dict[str, Any]) -> None:
    right = record(chunks, **fields)
    assert contradiction(right) == ""
    assert summary([right]).contradictions == 0
