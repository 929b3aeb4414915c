"""Long JSON lists read one entry at a time, however the reads cut them."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.errors import TraceFormatError, UsageError
from loadgen.workload.datasets import json_stream
from loadgen.workload.datasets.json_stream import entries

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
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_stream, "_FIRST_READ", read)
        assert [value for _, value in entries(path)] == values


def test_lines_are_those_where_entries_begin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "list.json"
    path.write_text('[\n{"a":\n 1},\n\n{"b": 2}, {"c": 3}\n]\n')
    for read in (3, 1000):
        monkeypatch.setattr(json_stream, "_FIRST_READ", read)
        assert [line for line, _ in entries(path)] == [2, 5, 5]


@pytest.mark.parametrize(("text", "line"), [("[\n{},\n{'a'}]", 3), ("[{},", 1), ('[{"a":\n1}\n', 3), ("nonsense", 1)])
def test_what_is_no_json_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, line: int) -> None:
    (tmp_path / "list.json").write_text(text)
    for read in (2, 1000):
        monkeypatch.setattr(json_stream, "_FIRST_READ", read)
        with pytest.raises(TraceFormatError, match=rf"list\.json:{line}: "):
            list(entries(tmp_path / "list.json"))


def test_an_entry_without_end_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_stream, "_FIRST_READ", 16)
    monkeypatch.setattr(json_stream, "_LONGEST_ENTRY", 64)
    (tmp_path / "list.json").write_text('[{"a": "' + "x" * 1000 + '"}]')
    with pytest.raises(TraceFormatError, match=r"list\.json:1: "):
        list(entries(tmp_path / "list.json"))


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot read"):
        list(entries(tmp_path / "nowhere"))
    (tmp_path / "binary").write_bytes(b'["\xff"]')
    with pytest.raises(TraceFormatError, match="not UTF-8"):
        list(entries(tmp_path / "binary"))
    (tmp_path / "empty").write_text("")
    assert list(entries(tmp_path / "empty")) == []
