"""The trace file: what is written is read again, byte for byte, and every broken line is named."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.errors import OutputError, TraceFormatError, UsageError
from loadgen.trace import TraceHeader, TraceRequest, describe, read_trace, write_trace
from loadgen.trace.file import mooncake_line, read_header, request_line

_HEADER = {"schema": "loadgen-trace/1", "block_tokens": 16, "hash_ids": "given", "endpoint": "/v1", "requests": 1}
_LINE = {"timestamp": 1.5, "input_length": 20, "output_length": 3, "hash_ids": [0, 1], "session": 0, "turn": 0}

_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
_REQUESTS = st.builds(
    TraceRequest,
    timestamp_us=st.integers(0, 10**13),
    input_length=st.integers(0, 10**6),
    output_length=st.integers(0, 10**6),
    hash_ids=st.lists(st.integers(0, 2**63 - 1), max_size=4),
    session=st.just(0),
    input_length_estimated=st.booleans(),
    think_us=st.integers(0, 10**10),
    tenant=_TEXT,
    conduct=st.sampled_from(["normal", "disconnect"]),
    body=st.none() | _TEXT,
)


def _in_order(requests: list[TraceRequest], turns: list[bool]) -> list[TraceRequest]:
    """Sessions and turns as the file needs them."""
    ordered: list[TraceRequest] = []
    for request in sorted(requests, key=lambda one: one.timestamp_us):
        later = bool(ordered) and turns[len(ordered) % len(turns)]
        session = ordered[-1].session + (not later) if ordered else 0
        turn = ordered[-1].turn + 1 if later else 0
        fields = {name: getattr(request, name) for name in TraceRequest.__struct_fields__}
        ordered.append(TraceRequest(**fields | {"session": session, "turn": turn}))
    return ordered


@given(st.lists(_REQUESTS, max_size=6), st.lists(st.booleans(), min_size=1, max_size=4), st.integers(0, 99))
def test_what_is_written_is_read_again_and_written_the_same(
    tmp_path_factory: pytest.TempPathFactory, requests: list[TraceRequest], turns: list[bool], n_bytes: int
) -> None:
    ordered = _in_order(requests, turns)
    header = TraceHeader(block_tokens=16, hash_ids="computed", bytes_per_block=n_bytes, requests=len(ordered))
    path, again = (tmp_path_factory.getbasetemp() / name for name in ("one", "again"))
    write_trace(path, header, ordered)
    assert read_header(path) == header
    assert list(read_trace(path)) == ordered
    write_trace(again, read_header(path), read_trace(path))
    assert again.read_bytes() == path.read_bytes()


def test_plain_json_is_all_that_a_reader_needs(tmp_path: Path) -> None:
    request = TraceRequest(
        timestamp_us=27_482_125, input_length=20, output_length=3, hash_ids=[4, 5], session=0, body='{"p": "ä\n"}'
    )
    write_trace(tmp_path / "t", TraceHeader(block_tokens=16, hash_ids="given", requests=1), [request])
    header, line = map(json.loads, (tmp_path / "t").read_text(encoding="utf-8").splitlines())
    assert header["schema"] == "loadgen-trace/1"
    assert (line["timestamp"], line["hash_ids"], line["body"]) == (27482.125, [4, 5], '{"p": "ä\n"}')
    assert "think_ms" not in line


def test_a_mooncake_line_keeps_its_bytes() -> None:
    line = '{"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [46, 47]}'
    request = TraceRequest(timestamp_us=27_482_000, input_length=6955, output_length=52, hash_ids=[46, 47], session=0)
    assert mooncake_line(request) == line
    assert request_line(request).startswith(line[:-1])


def _write(path: Path, *lines: object) -> Path:
    path.write_text("".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines))
    return path


@pytest.mark.parametrize(
    "header",
    [
        "nonsense",
        [],
        {},
        {**_HEADER, "schema": "loadgen-trace/2"},
        {**_HEADER, "hash_ids": "guessed"},
        {**_HEADER, "block_tokens": 0},
        {"schema": "loadgen-trace/1"},
    ],
)
def test_a_header_that_is_none(tmp_path: Path, header: object) -> None:
    path = _write(tmp_path / "t", header, _LINE)
    for read in (read_header, lambda path: list(read_trace(path)), describe):
        with pytest.raises(TraceFormatError, match=r"t:1: "):
            read(path)


def test_a_mooncake_trace_is_told_from_ours(tmp_path: Path) -> None:
    with pytest.raises(TraceFormatError, match="--dataset-name mooncake"):
        read_header(_write(tmp_path / "t", {"timestamp": 0, "input_length": 1, "output_length": 1}))


@pytest.mark.parametrize(
    "line",
    [
        "nonsense",
        "{}",
        {**_LINE, "timestamp": "soon"},
        {**_LINE, "timestamp": -1},
        {**_LINE, "input_length": -1},
        {**_LINE, "think_ms": -1},
        {**_LINE, "hash_ids": [-1]},
        {**_LINE, "hash_ids": [2**63]},
        {**_LINE, "turn": 1},
        {**_LINE, "body": {"model": "m"}},
        '{"timestamp": 1, "input_length": 1, "output_length": 1, "session": 0, "body": "\\ud800"}',
    ],
)
def test_a_line_that_is_no_request(tmp_path: Path, line: object) -> None:
    with pytest.raises(TraceFormatError, match=r"t:2: "):
        list(read_trace(_write(tmp_path / "t", _HEADER, line)))


@pytest.mark.parametrize(
    "line", [_LINE, {**_LINE, "turn": 2}, {**_LINE, "session": 1, "timestamp": 1}, {**_LINE, "session": -1}]
)
def test_a_line_that_does_not_follow(tmp_path: Path, line: object) -> None:
    requests = read_trace(_write(tmp_path / "t", {**_HEADER, "requests": 2}, _LINE, line))
    assert next(requests).timestamp_us == 1500
    with pytest.raises(TraceFormatError, match=r"t:3: "):
        next(requests)


def test_a_file_that_was_cut_off(tmp_path: Path) -> None:
    with pytest.raises(TraceFormatError, match="says 2 requests, there are 1"):
        list(read_trace(_write(tmp_path / "t", {**_HEADER, "requests": 2}, _LINE)))
    with pytest.raises(TraceFormatError, match="empty"):
        list(read_trace(_write(tmp_path / "t")))
    with pytest.raises(TraceFormatError, match="empty"):
        read_header(tmp_path / "t")


def test_files_that_cannot_be_opened(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot read"):
        list(read_trace(tmp_path / "nowhere"))
    with pytest.raises(OutputError, match="cannot write"):
        write_trace(tmp_path / "no" / "folder", TraceHeader(block_tokens=1, hash_ids="given", requests=0), [])


def test_a_trace_in_a_few_lines(tmp_path: Path) -> None:
    later = {**_LINE, "turn": 1, "timestamp": 9000, "hash_ids": [0, 1, 2], "input_length": 40, "body": "{}"}
    other = {**_LINE, "session": 5, "timestamp": 2501.5, "hash_ids": [0]}
    summary = describe(_write(tmp_path / "t", {**_HEADER, "requests": 3}, _LINE, later, other))
    assert (summary.requests, summary.sessions, summary.duration_s) == (3, 2, 2.5)
    assert (summary.blocks, summary.repeated_blocks) == (6, 3)
    assert (summary.input_tokens, summary.output_tokens, summary.with_body) == (80, 9, 1)
    assert summary.lines()[2] == "50.0% of 6 blocks of 16 tokens repeat earlier prefixes"
    nothing = describe(_write(tmp_path / "t", {**_HEADER, "requests": 0}))
    assert nothing.requests == 0
    assert "unknown of 0 blocks" in nothing.lines()[2]
