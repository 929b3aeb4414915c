"""Prompts of one's own, line by line."""

from pathlib import Path

import numpy as np
import pytest

from loadgen.errors import TraceFormatError, UsageError
from loadgen.plan import Conversation, PromptMessage, Role
from loadgen.workload.datasets import Custom, Fit, Measure
from loadgen.workload.distributions import Fixed
from loadgen.workload.lengths import Lengths
from tests.loadgen.workload.counters import Bytes

_64 = Lengths(Fixed(64))


def _read(tmp_path: Path, text: str, fit: Fit | None = None) -> list[Conversation]:
    path = tmp_path / "prompts.jsonl"
    path.write_text(text, encoding="utf-8")
    return list(Custom(path, _64, Measure(Bytes()), fit or Fit()).conversations(np.random.default_rng(0)))


def test_text_token_ids_and_messages(tmp_path: Path) -> None:
    text = '{"prompt": "hällo", "output_tokens": 7, "more": 1}\n{"prompt": [5, 6, 7]}\n'
    text += '{"messages": [{"role": "system", "content": "a"}, {"role": "user", "content": "b"}]}\n'
    turns = [conversation.turns[0] for conversation in _read(tmp_path, text)]
    assert [turn.prompt for turn in turns] == [
        "hällo",
        [5, 6, 7],
        [PromptMessage(Role.SYSTEM, "a"), PromptMessage(Role.USER, "b")],
    ]
    assert [(turn.input_tokens, turn.output_tokens) for turn in turns] == [(6, 7), (3, 64), (3, 64)]


def test_without_a_tokenizer_nothing_is_claimed(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "a b"}\n')
    [conversation] = Custom(path, _64).conversations(np.random.default_rng(0))
    assert conversation.turns[0].input_tokens is None


def test_what_does_not_fit_is_left_out(tmp_path: Path) -> None:
    fit = Fit(max_model_tokens=68)
    assert len(_read(tmp_path, '{"prompt": "abcd"}\n{"prompt": "abcde"}\n', fit)) == 1
    assert (fit.tally.taken, fit.tally.left_out) == (1, 1)


@pytest.mark.parametrize(
    "line",
    [
        "{}",
        '{"prompt": ""}',
        '{"prompt": []}',
        '{"prompt": 5}',
        '{"prompt": "a", "messages": [{"role": "user", "content": "b"}]}',
        '{"prompt": "a", "output_tokens": 0}',
        '{"messages": [{"role": "ghost", "content": "b"}]}',
        "{",
    ],
)
def test_a_line_that_is_no_prompt_is_named(tmp_path: Path, line: str) -> None:
    with pytest.raises(TraceFormatError, match=r"prompts\.jsonl:2: "):
        _read(tmp_path, f'{{"prompt": "a"}}\n{line}\n')


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        list(Custom(tmp_path / "nowhere", _64).conversations(np.random.default_rng(0)))
