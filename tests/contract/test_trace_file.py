"""What the load generator writes, the simulator reads, to the same requests. Neither imports the other."""

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.errors import TraceFormatError
from loadgen.trace import TraceHeader, read_trace, write_trace
from loadgen.trace import TraceRequest as Recorded
from loadgen.trace.file import SCHEMA as WRITTEN_SCHEMA
from loadgen.trace.file import mooncake_line, write_lines
from loadgen.workload.datasets.mooncake import BLOCK_TOKENS as WRITTEN_BLOCK_TOKENS
from serving.sim.workload.errors import TraceError
from serving.sim.workload.mooncake import BLOCK_TOKENS
from serving.sim.workload.open import open_workload
from serving.sim.workload.recorded import SCHEMA
from serving.sim.workload.request import TraceRequest

BLOCK = 16


@st.composite
def recordings(draw: st.DrawFn) -> list[Recorded]:
    """Sessions as the recorder writes them: together, in order of their beginnings, turns with pauses."""
    requests = []
    begun_us = 0
    for session in range(draw(st.integers(1, 4))):
        begun_us += draw(st.integers(0, 3_000_000))
        at_us, think_us = begun_us, 0
        for turn in range(draw(st.integers(1, 3))):
            length = draw(st.integers(1, 100))
            known = draw(st.sampled_from([0, length // BLOCK, -(-length // BLOCK)]))
            requests.append(
                Recorded(
                    timestamp_us=at_us,
                    input_length=length,
                    output_length=draw(st.integers(0, 50)),
                    hash_ids=draw(st.lists(st.integers(0, 2**63 - 1), min_size=known, max_size=known)),
                    session=session,
                    turn=turn,
                    think_us=think_us,
                    tenant=draw(st.sampled_from(["", "a"])),
                    body=draw(st.sampled_from([None, '{"prompt": "é"}'])),
                )
            )
            think_us = draw(st.integers(0, 5_000_000))
            at_us += think_us
    return requests


def recorded(folder: Path, requests: list[Recorded]) -> Path:
    """A trace file, written by the load generator."""
    header = TraceHeader(block_tokens=BLOCK, hash_ids="given", endpoint="/v1/completions", requests=len(requests))
    path = folder / "trace.jsonl"
    write_trace(path, header, requests)
    return path


def meant(request: Recorded, arrival_s: float) -> TraceRequest:
    """What the simulator should make of it."""
    return TraceRequest(arrival_s, request.input_length, max(1, request.output_length), tuple(request.hash_ids))


def test_both_mean_the_same_format() -> None:
    assert (SCHEMA, BLOCK_TOKENS) == (WRITTEN_SCHEMA, WRITTEN_BLOCK_TOKENS)


@given(recordings())
def test_what_is_written_is_read(tmp_path_factory: pytest.TempPathFactory, requests: list[Recorded]) -> None:
    path = recorded(tmp_path_factory.mktemp("trace"), requests)
    workload = open_workload(path)
    expected = [meant(request, request.timestamp_us / 1000 / 1000) for request in read_trace(path)]
    assert sorted(workload.requests) == sorted(expected)
    arrivals = [request.arrival_s for request in workload.requests]
    assert arrivals == sorted(arrivals)
    assert (workload.count, workload.block_tokens) == (len(requests), BLOCK)


@given(recordings(), st.floats(0, 0.5))
def test_turns_wait_for_answers(
    tmp_path_factory: pytest.TempPathFactory, requests: list[Recorded], token_s: float
) -> None:
    path = recorded(tmp_path_factory.mktemp("trace"), requests)
    expected, free_s = [], 0.0
    for request in requests:
        arrival_s = request.timestamp_us / 1e6 if request.turn == 0 else free_s + request.think_us / 1e6
        expected.append(meant(request, arrival_s))
        free_s = arrival_s + max(1, request.output_length) * token_s
    read = sorted(open_workload(path, token_s=token_s).requests)
    expected.sort()
    assert [r.arrival_s for r in read] == pytest.approx([r.arrival_s for r in expected], abs=1e-6)
    assert sorted(r[1:] for r in read) == sorted(r[1:] for r in expected)


@given(recordings())
def test_mooncake_lines_are_read(tmp_path_factory: pytest.TempPathFactory, requests: list[Recorded]) -> None:
    first = [r for r in requests if r.turn == 0 and r.output_length]
    lines = [mooncake_line(msgspec.structs.replace(r, hash_ids=r.hash_ids[:1])) for r in first]
    path = tmp_path_factory.mktemp("trace") / "mooncake.jsonl"
    write_lines(path, lines)
    if not lines:
        with pytest.raises(TraceError, match="no request in it"):
            open_workload(path)
        return
    read = list(open_workload(path).requests)
    assert [r.arrival_s for r in read] == [r.timestamp_us / 1000 / 1000 for r in first]
    assert [r.blocks for r in read] == [tuple(r.hash_ids[:1]) for r in first]


def test_ids_beyond_the_counted_prompt_are_dropped(tmp_path: Path) -> None:
    """Ids are planned, lengths are counted by a server: they may differ, and the trace is good nevertheless."""
    requests = [
        Recorded(timestamp_us=0, input_length=17, output_length=1, hash_ids=[1, 2, 3], session=0),
        Recorded(timestamp_us=5, input_length=90, output_length=1, hash_ids=[1, 2, 3], session=1),
    ]
    assert [r.blocks for r in open_workload(recorded(tmp_path, requests)).requests] == [(1, 2), (1, 2, 3)]


@pytest.mark.parametrize("cut", [1, 2])
def test_both_refuse_a_file_that_was_cut_off(tmp_path: Path, cut: int) -> None:
    requests = [Recorded(timestamp_us=at, input_length=9, output_length=1, session=at) for at in range(2)]
    path = recorded(tmp_path, requests)
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-cut]))
    with pytest.raises(TraceFormatError, match=f"says 2 requests, there are {2 - cut}"):
        list(read_trace(path))
    with pytest.raises(TraceError, match=f"says 2 requests, there are {2 - cut}"):
        open_workload(path)
