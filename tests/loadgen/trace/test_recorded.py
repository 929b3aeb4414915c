"""Our own trace file: read back byte for byte, and every broken line is named."""

import json
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.cli.main import main
from loadgen.errors import OutputError, TraceFormatError
from loadgen.trace import (
    KEEPS_IDS,
    Reading,
    RecordedTrace,
    TraceForm,
    TraceHeader,
    TraceRecord,
    convert,
    describe,
    open_trace,
    write_recorded,
    write_requests,
)
from loadgen.trace.mooncake import mooncake_line
from loadgen.trace.recorded import request_line, write_lines
from tests.cases.traces import GOOD, servegen, written

_HEADER = {"schema": "loadgen-trace/1", "block_tokens": 16, "hash_ids": "given", "endpoint": "/v1", "requests": 1}
_LINE = {"timestamp": 1.5, "input_length": 20, "output_length": 3, "hash_ids": [0, 1], "session": 0, "turn": 0}

_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
_MICROSECONDS = 10**13
_REQUESTS = st.builds(
    TraceRecord,
    arrival_s=st.integers(0, _MICROSECONDS).map(lambda time_us: time_us / 1e6),
    input_tokens=st.integers(1, 10**6),
    output_tokens=st.integers(0, 10**6),
    hash_ids=st.lists(st.integers(0, 2**63 - 1), max_size=4),
    session=st.just(0),
    input_estimated=st.booleans(),
    think_s=st.integers(0, 10**10).map(lambda time_us: time_us / 1e6),
    tenant=_TEXT,
    conduct=st.sampled_from(["normal", "disconnect"]),
    body=st.none() | _TEXT,
)


def _in_order(requests: list[TraceRecord], turns: list[bool]) -> list[TraceRecord]:
    """Sessions and turns as the file needs them."""
    ordered: list[TraceRecord] = []
    session = 0
    for request in sorted(requests, key=lambda one: one.arrival_s):
        later = bool(ordered) and turns[len(ordered) % len(turns)]
        session += bool(ordered) and not later
        ordered.append(msgspec.structs.replace(request, session=session, follows=later))
    return ordered


def _read(path: Path) -> list[TraceRecord]:
    return list(open_trace(path).requests())


@given(st.lists(_REQUESTS, min_size=1, max_size=6), st.lists(st.booleans(), min_size=1, max_size=4), st.integers(0, 99))
def test_what_is_written_is_read_again_and_written_the_same(
    tmp_path_factory: pytest.TempPathFactory, requests: list[TraceRecord], turns: list[bool], n_bytes: int
) -> None:
    ordered = _in_order(requests, turns)
    header = TraceHeader(block_tokens=16, hash_ids="computed", bytes_per_block=n_bytes, requests=len(ordered))
    path, again = (tmp_path_factory.getbasetemp() / name for name in ("one", "again"))
    write_recorded(path, header, ordered)
    trace = open_trace(path)
    assert isinstance(trace, RecordedTrace)
    assert trace.header == header
    read = list(trace.requests())
    assert [msgspec.structs.replace(one, arrival_s=0.0, think_s=0.0) for one in read] == [
        msgspec.structs.replace(one, arrival_s=0.0, think_s=0.0) for one in ordered
    ]
    assert [one.arrival_s for one in read] == pytest.approx([one.arrival_s for one in ordered], abs=1e-9)
    write_recorded(again, trace.header, read)
    assert again.read_bytes() == path.read_bytes()


def test_plain_json_with_the_bytes_of_mooncake(tmp_path: Path) -> None:
    request = TraceRecord(
        arrival_s=27.482125, input_tokens=20, output_tokens=3, hash_ids=[4, 5], session=0, body='{"p": "ä\n"}'
    )
    write_recorded(tmp_path / "t", TraceHeader(block_tokens=16, requests=1), [request])
    header, line = map(json.loads, (tmp_path / "t").read_text(encoding="utf-8").splitlines())
    assert header["schema"] == "loadgen-trace/1"
    assert (line["timestamp"], line["hash_ids"], line["body"]) == (27482.125, [4, 5], '{"p": "ä\n"}')
    assert "think_ms" not in line

    line = '{"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [46, 47]}'
    request = TraceRecord(arrival_s=27.482, input_tokens=6955, output_tokens=52, hash_ids=[46, 47])
    assert mooncake_line(request) == line
    assert request_line(request, 0).startswith(line[:-1])


def _write(path: Path, *lines: object) -> Path:
    path.write_text("".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines))
    return path


@pytest.mark.parametrize(
    "header",
    [
        "nonsense", [], {}, {**_HEADER, "schema": "loadgen-trace/2"}, {**_HEADER, "hash_ids": "guessed"},
        {**_HEADER, "block_tokens": 0}, {"schema": "loadgen-trace/1"},
    ],
)  # fmt: skip
def test_a_header_that_is_none(tmp_path: Path, header: object) -> None:
    path = _write(tmp_path / "t", header, _LINE)
    with pytest.raises(TraceFormatError, match=r"t:1: "):
        open_trace(path)


@pytest.mark.parametrize(
    "line",
    [
        "nonsense", "{}", {**_LINE, "timestamp": "soon"}, {**_LINE, "timestamp": -1}, {**_LINE, "input_length": -1},
        {**_LINE, "think_ms": -1}, {**_LINE, "hash_ids": [-1]}, {**_LINE, "hash_ids": [2**64]},
        {**_LINE, "turn": 1}, {**_LINE, "body": {"model": "m"}},
        '{"timestamp": 1, "input_length": 1, "output_length": 1, "session": 0, "body": "\\ud800"}',
    ],
)  # fmt: skip
def test_a_line_that_is_no_request(tmp_path: Path, line: object) -> None:
    with pytest.raises(TraceFormatError, match=r"t:2: "):
        _read(_write(tmp_path / "t", _HEADER, line))


@pytest.mark.parametrize(
    "line", [_LINE, {**_LINE, "turn": 2}, {**_LINE, "session": 1, "timestamp": 1}, {**_LINE, "session": -1}]
)
def test_a_line_that_does_not_follow(tmp_path: Path, line: object) -> None:
    requests = open_trace(_write(tmp_path / "t", {**_HEADER, "requests": 2}, _LINE, line)).requests()
    assert next(requests).arrival_s == 0.0015
    with pytest.raises(TraceFormatError, match=r"t:3: "):
        next(requests)


def test_files_that_are_cut_off_or_cannot_be_opened(tmp_path: Path) -> None:
    with pytest.raises(TraceFormatError, match="says 2 requests, there are 1"):
        _read(_write(tmp_path / "t", {**_HEADER, "requests": 2}, _LINE))
    with pytest.raises(TraceFormatError, match="no request in it"):
        _read(_write(tmp_path / "t"))
    with pytest.raises(TraceFormatError, match="cannot be read"):
        open_trace(tmp_path / "nowhere")
    with pytest.raises(OutputError, match="cannot write"):
        write_recorded(tmp_path / "no" / "folder", TraceHeader(block_tokens=1, requests=0), [])


def test_a_trace_in_a_few_lines(tmp_path: Path) -> None:
    later = {**_LINE, "turn": 1, "timestamp": 9000, "hash_ids": [0, 1, 2], "input_length": 40, "body": "{}"}
    other = {**_LINE, "session": 5, "timestamp": 2501.5, "hash_ids": [0]}
    summary = describe(open_trace(_write(tmp_path / "t", {**_HEADER, "requests": 3}, _LINE, later, other)))
    assert (summary.requests, summary.sessions, summary.duration_s) == (3, 2, 2.5)
    assert (summary.blocks, summary.repeated_blocks) == (6, 3)
    assert (summary.input_tokens, summary.output_tokens, summary.with_body) == (80, 9, 1)
    assert summary.lines()[2] == "50.0% of 6 blocks of 16 tokens repeat earlier prefixes"
    assert summary.lines()[0] == "3 requests in 2 sessions over 2.5 s, to /v1"


BLOCK = 16
WITHOUT_HEADER = [form for form in TraceForm if form is not TraceForm.LOADGEN]


@st.composite
def traces(draw: st.DrawFn) -> list[TraceRecord]:
    """Requests in order of time, with ids that cover their prompts, in sessions or alone, without waits."""
    requests, at_us, first_us = [], 0, draw(st.integers(0, 86_400_000_000))
    for _ in range(draw(st.integers(1, 8))):
        length = draw(st.integers(1, 100))
        known = draw(st.sampled_from([0, length // BLOCK, -(-length // BLOCK)]))
        requests.append(
            TraceRecord(
                arrival_s=(first_us + at_us) / 1e6,
                input_tokens=length,
                output_tokens=draw(st.integers(1, 1000)),
                hash_ids=draw(st.lists(st.integers(0, 2**63 - 1), min_size=known, max_size=known)),
                session=draw(st.sampled_from([None, 1, 2])),
            )
        )
        at_us += draw(st.integers(0, 5_000_000))
    return requests


def shared(requests: list[TraceRecord]) -> list[list[int]]:
    """For each prefix of each request, the request that had it first."""
    first: dict[tuple[int, ...], int] = {}
    return [
        [first.setdefault(tuple(one.hash_ids[: place + 1]), number) for place in range(len(one.hash_ids))]
        for number, one in enumerate(requests)
    ]


@pytest.mark.parametrize("form", WITHOUT_HEADER)
@given(requests=traces())
def test_a_round_trip(tmp_path_factory: pytest.TempPathFactory, form: TraceForm, requests: list[TraceRecord]) -> None:
    path = tmp_path_factory.mktemp("trace") / "trace"
    write_requests(path, form, requests)
    reading = Reading(BLOCK if form in KEEPS_IDS else None)
    read = list(open_trace(path, reading).requests())
    # Dates have no zero: they count from the first.
    first_s = requests[0].arrival_s if form is TraceForm.AZURE else 0.0
    assert [one.arrival_s for one in read] == pytest.approx([one.arrival_s - first_s for one in requests], abs=1e-6)
    assert [(one.input_tokens, one.output_tokens) for one in read] == [
        (one.input_tokens, one.output_tokens) for one in requests
    ]
    if form is TraceForm.MOONCAKE:
        assert [one.hash_ids for one in read] == [one.hash_ids for one in requests]
    if form is TraceForm.BAILIAN:
        assert shared(read) == shared(requests)
    again = path.with_name("again")
    write_requests(again, form, [msgspec.structs.replace(one, arrival_s=one.arrival_s + first_s) for one in read])
    if form is not TraceForm.BAILIAN:  # whose ids are hashed again
        assert again.read_bytes() == path.read_bytes()


@pytest.mark.parametrize("form", TraceForm)
@pytest.mark.parametrize("sample", GOOD)
def test_a_trace_of_any_format_is_written_in_any(tmp_path: Path, sample: str, form: TraceForm) -> None:
    trace = open_trace(written(tmp_path, GOOD[sample][0]))
    before = sorted(trace.requests(), key=lambda one: one.arrival_s)
    assert convert(trace, tmp_path / "out", form) == len(before)
    reading = Reading(trace.block_tokens if form in (TraceForm.MOONCAKE, TraceForm.BAILIAN) else None)
    after = sorted(open_trace(tmp_path / "out", reading).requests(), key=lambda one: one.arrival_s)
    first_s = before[0].arrival_s if form is TraceForm.AZURE else 0.0
    answers = [max(1, one.output_tokens) if form is TraceForm.BURSTGPT else one.output_tokens for one in before]
    assert [(one.input_tokens, one.output_tokens) for one in after] == [
        (one.input_tokens, output) for one, output in zip(before, answers, strict=True)
    ]
    assert [one.arrival_s for one in after] == pytest.approx([one.arrival_s - first_s for one in before], abs=1e-6)
    if form in KEEPS_IDS and sample != "ours":
        assert shared(after) == shared(before)


@pytest.mark.parametrize("form", [TraceForm.MOONCAKE, TraceForm.BAILIAN])
def test_ids_that_were_planned_for_other_lengths_cover_the_prompts(tmp_path: Path, form: TraceForm) -> None:
    requests = [
        TraceRecord(arrival_s=0, input_tokens=20, output_tokens=1, hash_ids=[1, 2, 3]),
        TraceRecord(arrival_s=1, input_tokens=70, output_tokens=1, hash_ids=[1, 2]),
        TraceRecord(arrival_s=2, input_tokens=70, output_tokens=1, hash_ids=[1, 2, 2**63 - 1, 4]),
        TraceRecord(arrival_s=3, input_tokens=70, output_tokens=1),
    ]
    write_requests(tmp_path / "out", form, requests, BLOCK)
    read = list(open_trace(tmp_path / "out", Reading(BLOCK)).requests())
    assert shared(read) == [[0, 0], [0, 0, 1, 1, 1], [0, 0, 2, 2], []]


def test_what_is_converted_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = servegen(tmp_path / "servegen")
    assert main(["trace", "convert", str(folder), "-o", str(tmp_path / "out"), "--format", "plain", "--seed", "3"]) == 0
    made = [(one.input_tokens, one.output_tokens) for one in open_trace(folder, Reading(seed=3)).requests()]
    assert capsys.readouterr().out == f"{tmp_path / 'out'}: {len(made)} requests\n"
    assert [(one.input_tokens, one.output_tokens) for one in open_trace(tmp_path / "out").requests()] == made
    assert main(["trace", "info", str(tmp_path / "out")]) == 0
    assert "no information about prefixes" in capsys.readouterr().out

    path = written(tmp_path, GOOD["mooncake, dates"][0])
    assert main(["trace", "convert", str(path), "-o", str(tmp_path / "out"), "--format", "azure"]) == 0
    said, note = capsys.readouterr().out.splitlines()
    assert said == f"{tmp_path / 'out'}: 2 requests; it holds no hash_ids"
    assert note.startswith("times are dates")


def test_bad_traces_and_lines_leave_nothing_behind(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path, GOOD["plain"][0] + "\n0.5,1,1\n")
    assert main(["trace", "convert", str(path), "-o", str(tmp_path / "out"), "--format", "mooncake"]) == 2
    assert capsys.readouterr().err.startswith(f"loadgen: {path}:6: not a line of")
    assert [one.name for one in tmp_path.iterdir()] == ["trace"]

    def lines() -> list[str]:
        raise TraceFormatError("bad")

    with pytest.raises(TraceFormatError):
        write_lines(tmp_path / "out", (line for line in lines()))
    with pytest.raises(OutputError, match="cannot write"):
        write_lines(tmp_path / "no" / "folder", ["a"])
    assert [one.name for one in tmp_path.iterdir()] == ["trace"]
