"""A user's own prompts, line by line."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.errors import TraceFormatError, UsageError
from loadgen.plan import Conversation, PromptMessage, Role
from loadgen.workload.datasets import Custom, Fit, Measure, Tally
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


def test_what_is_left_out_is_counted(tmp_path: Path) -> None:
    fit = Fit(max_model_tokens=68)
    assert len(_read(tmp_path, '{"prompt": "abcd"}\n{"prompt": "abcde"}\n', fit)) == 1
    assert (fit.tally.taken, fit.tally.left_out) == (1, 1)
    assert Tally(taken=5).warnings() == []
    (left_out,) = Tally(taken=5, left_out=3).warnings()
    assert left_out.startswith("3 entries")


@pytest.mark.parametrize(
    "line",
    [
        "{}", '{"prompt": ""}', '{"prompt": []}', '{"prompt": 5}',
        '{"prompt": "a", "messages": [{"role": "user", "content": "b"}]}', '{"prompt": "a", "output_tokens": 0}',
        '{"messages": [{"role": "ghost", "content": "b"}]}', "{",
    ],
)  # fmt: skip
def test_a_line_that_is_no_prompt_is_named(tmp_path: Path, line: str) -> None:
    with pytest.raises(TraceFormatError, match=r"prompts\.jsonl:2: "):
        _read(tmp_path, f'{{"prompt": "a"}}\n{line}\n')


def test_what_is_refused_or_not_claimed(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        list(Custom(tmp_path / "nowhere", _64).conversations(np.random.default_rng(0)))
    with pytest.raises(UsageError, match="no room"):
        Fit(max_model_tokens=1)


def test_prompts_fit_in_whole_blocks() -> None:
    fit = Fit(length_scale=1 / 32)
    assert [fit.scaled(tokens) for tokens in (0, 1, 47, 48, 512)] == [1, 1, 1, 2, 16]
    fit = Fit(max_model_tokens=100)
    assert fit.clipped(90, 10, 16) == (90, 10)
    fit = Fit(max_model_tokens=100)
    assert fit.clipped(95, 10, 16) == (80, 10)  # 90 fit: five blocks of 16
    assert fit.clipped(95, 90, 16) == (10, 90)  # not one block fits: the remaining length
    assert fit.clipped(5, 500) == (1, 99)
    assert Fit(max_model_tokens=10).fits(10)
    assert not Fit(max_model_tokens=10).fits(11)
    assert Fit().fits(10**9)


@given(st.integers(1, 10_000), st.integers(1, 10_000), st.integers(2, 5_000), st.integers(1, 64))
def test_clipped_lengths_always_fit(input_tokens: int, output_tokens: int, room: int, block: int) -> None:
    clipped = Fit(max_model_tokens=room).clipped(input_tokens, output_tokens, block)
    assert sum(clipped) <= room
    assert 1 <= clipped[0] <= input_tokens
    assert 1 <= clipped[1] <= output_tokens


@pytest.mark.parametrize("scale", [0, -1, float("inf"), float("nan")])
def test_a_scale_must_be_above_0(scale: float) -> None:
    with pytest.raises(UsageError, match="length scale"):
        Fit(length_scale=scale)
