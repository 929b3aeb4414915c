"""Recorded conversations: the sent questions, the requested lengths, the skipped parts."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.errors import TraceFormatError, UsageError
from loadgen.plan import PromptMessage, Role
from loadgen.workload.datasets import Fit, Measure, ShareGpt
from loadgen.workload.datasets.sharegpt import entries
from loadgen.workload.distributions import Fixed
from loadgen.workload.lengths import Lengths
from loadgen.workload.local_tokenizer import LocalTokenizer
from tests.loadgen.workload.counters import Bytes

_RNG = np.random.default_rng


def _said(*texts: str, first: str = "human") -> list[dict[str, str]]:
    speakers = ("human", "gpt") if first == "human" else ("gpt", "human")
    return [{"from": speakers[index % 2], "value": text} for index, text in enumerate(texts)]


def _file(path: Path, *entries: Any) -> Path:
    (path / "share.json").write_text(json.dumps(list(entries), indent=1))
    return path / "share.json"


def test_questions_alone_and_whole_conversations(tmp_path: Path) -> None:
    path = _file(tmp_path, {"id": "a", "conversations": _said("Why?", "Because it is.", "Really?", "Yes.")})
    [conversation] = ShareGpt(path, Measure(Bytes())).conversations(_RNG(0))
    [turn] = conversation.turns
    assert (turn.prompt, turn.input_tokens, turn.output_tokens) == ("Why?", 4, 14)
    assert conversation.arrival_s is None

    path = _file(tmp_path, {"conversations": _said("Why?", "Because it is.", "Really?", "Yes.")})
    workload = ShareGpt(path, Measure(Bytes()), whole=True, think_s=Fixed(2.0))
    [conversation] = workload.conversations(_RNG(0))
    assert [(turn.prompt, turn.output_tokens, turn.think_s) for turn in conversation.turns] == [
        ("Why?", 14, 0.0),
        ("Really?", 4, 2.0),
    ]
    assert conversation.history

    path = _file(tmp_path, {"conversations": _said("aaaa", "bbbb", "cccc", "dddd", "e", "f")})
    [conversation] = ShareGpt(path, Measure(Bytes()), whole=True, fit=Fit(max_model_tokens=17)).conversations(_RNG(0))
    assert [turn.prompt for turn in conversation.turns] == ["aaaa", "cccc"]


def test_lengths_wanted_estimated_and_counted(tmp_path: Path, bpe: LocalTokenizer) -> None:
    path = _file(tmp_path, {"conversations": _said("one two three four five six seven eight nine ten", "x")})
    [wanted] = ShareGpt(path, output_tokens=Lengths(Fixed(77))).conversations(_RNG(0))
    assert (wanted.turns[0].output_tokens, wanted.turns[0].input_tokens) == (77, None)
    workload = ShareGpt(path, fit=Fit(max_model_tokens=13))
    assert list(workload.conversations(_RNG(0))) == []  # 13 estimated tokens of prompt and 1 of answer
    assert workload.fit.tally.left_out == 1

    path = _file(tmp_path, {"conversations": _said("the people of the world", "yes")})
    [conversation] = ShareGpt(path, Measure(bpe)).conversations(_RNG(0))
    assert conversation.turns[0].input_tokens == bpe.count("the people of the world")


def test_system_messages_and_the_form_of_openai(tmp_path: Path) -> None:
    entry = {
        "messages": [
            {"role": "system", "content": "Be short."},
            {"role": "user", "content": "Why?"},
            {"role": "assistant", "content": "No."},
        ]
    }
    [conversation] = ShareGpt(_file(tmp_path, entry), Measure(Bytes())).conversations(_RNG(0))
    assert conversation.turns[0].prompt == [PromptMessage(Role.SYSTEM, "Be short."), PromptMessage(Role.USER, "Why?")]
    assert conversation.turns[0].input_tokens == len("Be short.\nWhy?")


def test_entries_without_question_and_answer_are_left_out(tmp_path: Path) -> None:
    path = _file(
        tmp_path,
        {"conversations": []},
        {"conversations": _said("alone")},
        {"conversations": _said("  ", "an answer to nothing")},
        {"conversations": [{"from": "human", "value": "a"}, {"from": "human", "value": "b"}]},
        {"conversations": [{"from": "narrator", "value": "a"}, {"from": "gpt", "value": "b"}]},
        {"conversations": _said("cut off in front", "Why?", "Because.", first="gpt")},
    )
    workload = ShareGpt(path)
    assert [conversation.turns[0].prompt for conversation in workload.conversations(_RNG(0))] == ["Why?"]
    assert (workload.fit.tally.taken, workload.fit.tally.left_out) == (1, 5)


@pytest.mark.parametrize("entry", [7, {"text": "x"}, {"conversations": "x"}, {"conversations": ["x"]}])
def test_an_entry_that_is_no_conversation_is_named(tmp_path: Path, entry: Any) -> None:
    path = tmp_path / "share.json"
    path.write_text("[\n" + json.dumps(entry) + "]")
    with pytest.raises(TraceFormatError, match=r"share\.json:2: "):
        list(ShareGpt(path).conversations(_RNG(0)))


_VALUES = st.lists(
    st.dictionaries(st.text(max_size=4), st.one_of(st.text(max_size=30), st.integers(), st.lists(st.booleans()))),
    max_size=8,
)


@given(_VALUES, st.sampled_from([None, 1]), st.integers(1, 20), st.booleans())
def test_a_list_is_read_whatever_the_reads_cut(
    tmp_path_factory: pytest.TempPathFactory, values: list[Any], indent: int | None, read: int, lines: bool
) -> None:
    path = tmp_path_factory.getbasetemp() / "list.json"
    whole = json.dumps(values, indent=indent, ensure_ascii=False)
    path.write_text("\n".join(map(json.dumps, values)) if lines else whole, encoding="utf-8")
    assert [value for _, value in entries(path, first_read=read)] == values


def test_lines_are_those_where_entries_begin(tmp_path: Path) -> None:
    path = tmp_path / "list.json"
    path.write_text('[\n{"a":\n 1},\n\n{"b": 2}, {"c": 3}\n]\n')
    for read in (3, 1000):
        assert [line for line, _ in entries(path, first_read=read)] == [2, 5, 5]


@pytest.mark.parametrize(("text", "line"), [("[\n{},\n{'a'}]", 3), ("[{},", 1), ('[{"a":\n1}\n', 3), ("nonsense", 1)])
def test_what_is_no_json_is_named(tmp_path: Path, text: str, line: int) -> None:
    (tmp_path / "list.json").write_text(text)
    for read in (2, 1000):
        with pytest.raises(TraceFormatError, match=rf"list\.json:{line}: "):
            list(entries(tmp_path / "list.json", first_read=read))


def test_an_entry_without_end_is_given_up(tmp_path: Path) -> None:
    (tmp_path / "list.json").write_text('[{"a": "' + "x" * 1000 + '"}]')
    with pytest.raises(TraceFormatError, match=r"list\.json:1: "):
        list(entries(tmp_path / "list.json", first_read=16, longest_entry=64))


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot read"):
        list(entries(tmp_path / "nowhere"))
    (tmp_path / "binary").write_bytes(b'["\xff"]')
    with pytest.raises(TraceFormatError, match="not UTF-8"):
        list(entries(tmp_path / "binary"))
    (tmp_path / "empty").write_text("")
    assert list(entries(tmp_path / "empty")) == []
