"""Azure traces: times to the microsecond, lengths, and errors with their line."""

from pathlib import Path

import numpy as np
import pytest

from loadgen.errors import TraceFormatError, UsageError
from loadgen.plan import Conversation
from loadgen.workload.datasets import Azure, Fit
from loadgen.workload.local_tokenizer import LocalTokenizer
from loadgen.workload.words import Words

_HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens\n"


def _read(path: Path, words: Words, text: str, fit: Fit | None = None) -> list[Conversation]:
    (path / "trace.csv").write_text(text, encoding="utf-8")
    return list(Azure(path / "trace.csv", words, fit or Fit()).conversations(np.random.default_rng(0)))


def test_times_count_from_the_first_request(tmp_path: Path, words: Words) -> None:
    text = _HEADER + "2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.9951690,396,109\n"
    first, second = _read(tmp_path, words, text)
    assert (first.arrival_s, second.arrival_s) == (0.0, 4.314579)
    assert [first.turns[0].input_tokens, first.turns[0].output_tokens] == [374, 44]


def test_later_years_have_zones_and_more_columns(tmp_path: Path, words: Words) -> None:
    text = "\ufeffTIMESTAMP,NumImages,ContextTokens,GeneratedTokens\n"
    text += "2024-05-10 00:00:00.5+00:00,1,30,4\n\n2024-05-10 01:00:01+01:00,0,20,0\n"
    first, second = _read(tmp_path, words, text)
    assert second.arrival_s == 0.5
    assert [first.turns[0].input_tokens, second.turns[0].input_tokens] == [30, 20]
    assert (second.turns[0].output_tokens, second.turns[0].asked_output_tokens) == (1, 0)


def test_prompts_have_the_scaled_tokens_and_differ(tmp_path: Path, words: Words, bpe: LocalTokenizer) -> None:
    text = _HEADER + "2023-11-16 18:15:46,320,32\n" * 2
    fit = Fit(0.1, max_model_tokens=20)
    turns = [conversation.turns[0] for conversation in _read(tmp_path, words, text, fit)]
    prompts = [turn.prompt for turn in turns]
    assert all(isinstance(prompt, str) and bpe.count(prompt) == 17 for prompt in prompts)
    assert prompts[0] != prompts[1]
    assert [(turn.asked_input_tokens, turn.asked_output_tokens) for turn in turns] == [(32, None)] * 2


@pytest.mark.parametrize(
    "line", ["yesterday,1,2", "2023-11-16 18:15:46,x,2", "2023-11-16 18:15:46,1", "2023-11-16,1,-2"]
)
def test_a_line_that_is_no_request_is_named(tmp_path: Path, words: Words, line: str) -> None:
    with pytest.raises(TraceFormatError, match=r"trace\.csv:3: "):
        _read(tmp_path, words, f"{_HEADER}2023-11-16 18:15:46,1,2\n{line}\n")


def test_a_file_of_another_kind(tmp_path: Path, words: Words) -> None:
    with pytest.raises(TraceFormatError, match="no column ContextTokens"):
        _read(tmp_path, words, "TIMESTAMP,GeneratedTokens\n")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\xff")
    with pytest.raises(TraceFormatError, match="not CSV"):
        list(Azure(tmp_path / "binary", words).conversations(np.random.default_rng(0)))
    with pytest.raises(UsageError, match="cannot read"):
        list(Azure(tmp_path / "nowhere", words).conversations(np.random.default_rng(0)))
