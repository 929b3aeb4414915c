"""What is written in a format is read from it again, as far as it holds it; and every trace can be written in all."""

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.cli.main import main
from loadgen.errors import OutputError, TraceFormatError
from loadgen.trace import KEEPS_IDS, Reading, TraceForm, TraceRecord, convert, open_trace, write_requests
from loadgen.trace.whole_file import write_lines
from tests.cases.traces import GOOD, servegen, written

BLOCK = 16
WITHOUT_HEADER = [form for form in TraceForm if form is not TraceForm.LOADGEN]


@st.composite
def traces(draw: st.DrawFn) -> list[TraceRecord]:
    """Requests in order of time, with ids that cover their prompts, in sessions or alone, none of which wait."""
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
    """Of each prefix of each request, which request had it first."""
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
    if form is not TraceForm.BAILIAN:  # whose ids are hashed anew
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
    assert "nothing is known of prefixes" in capsys.readouterr().out

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
    assert not [*tmp_path.iterdir()]
