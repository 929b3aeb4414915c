"""Files written by the load generator are read by the simulator as the same requests."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.trace import TraceForm, TraceHeader, TraceRecord, open_trace, write_recorded, write_requests
from serving.virtual.workload.columns import TraceRequest
from serving.virtual.workload.open import open_workload

BLOCK = 16


@st.composite
def recordings(draw: st.DrawFn) -> list[TraceRecord]:
    """Sessions as the recorder writes them: together, ordered by their starts, turns with pauses."""
    requests = []
    begun_us = 0
    for session in range(draw(st.integers(1, 4))):
        begun_us += draw(st.integers(0, 3_000_000))
        at_us, think_us = begun_us, 0
        for turn in range(draw(st.integers(1, 3))):
            length = draw(st.integers(1, 100))
            known = draw(st.sampled_from([0, length // BLOCK, -(-length // BLOCK)]))
            requests.append(
                TraceRecord(
                    arrival_s=at_us / 1e6,
                    input_tokens=length,
                    output_tokens=draw(st.integers(0, 50)),
                    hash_ids=draw(st.lists(st.integers(0, 2**63 - 1), min_size=known, max_size=known)),
                    session=session,
                    follows=turn > 0,
                    think_s=think_us / 1e6,
                    tenant=draw(st.sampled_from(["", "a"])),
                    body=draw(st.sampled_from([None, '{"prompt": "é"}'])),
                )
            )
            think_us = draw(st.integers(0, 5_000_000))
            at_us += think_us
    return requests


def recorded(folder: Path, requests: list[TraceRecord]) -> Path:
    """A trace file, written by the load generator."""
    header = TraceHeader(block_tokens=BLOCK, endpoint="/v1/completions", requests=len(requests))
    path = folder / "trace.jsonl"
    write_recorded(path, header, requests)
    return path


def meant(request: TraceRecord, arrival_s: float) -> TraceRequest:
    """Expected requests of the simulator."""
    return TraceRequest(arrival_s, request.input_tokens, max(1, request.output_tokens), tuple(request.hash_ids))


@given(recordings())
def test_what_is_written_is_read(tmp_path_factory: pytest.TempPathFactory, requests: list[TraceRecord]) -> None:
    path = recorded(tmp_path_factory.mktemp("trace"), requests)
    workload = open_workload(path)
    expected = [meant(request, request.arrival_s) for request in open_trace(path).requests()]
    assert sorted(workload.requests) == sorted(expected)
    arrivals = [request.arrival_s for request in workload.requests]
    assert arrivals == sorted(arrivals)
    assert (workload.count, workload.block_tokens) == (len(requests), BLOCK)


@given(recordings(), st.floats(0, 0.5))
def test_turns_wait_for_answers(
    tmp_path_factory: pytest.TempPathFactory, requests: list[TraceRecord], token_s: float
) -> None:
    path = recorded(tmp_path_factory.mktemp("trace"), requests)
    expected, free_s = [], 0.0
    for request in requests:
        arrival_s = free_s + request.think_s if request.follows else request.arrival_s
        expected.append(meant(request, arrival_s))
        free_s = arrival_s + max(1, request.output_tokens) * token_s
    read = sorted(open_workload(path, token_s=token_s).requests)
    expected.sort()
    assert [r.arrival_s for r in read] == pytest.approx([r.arrival_s for r in expected], abs=1e-6)
    assert sorted(r[1:] for r in read) == sorted(r[1:] for r in expected)


@given(recordings())
def test_sessions_in_a_mooncake_file_are_read_as_those_in_ours(
    tmp_path_factory: pytest.TempPathFactory, requests: list[TraceRecord]
) -> None:
    folder = tmp_path_factory.mktemp("trace")
    write_requests(folder / "mooncake.jsonl", TraceForm.MOONCAKE, requests)
    read, ours = (
        sorted(one._replace(arrival_s=round(one.arrival_s, 6)) for one in workload.requests)
        for workload in (
            open_workload(folder / "mooncake.jsonl", block_tokens=BLOCK),
            open_workload(recorded(folder, requests)),
        )
    )
    assert read == ours


def test_ids_beyond_the_counted_prompt_are_dropped(tmp_path: Path) -> None:
    """Ids are planned, lengths are counted by a server: they may differ, and the trace is still valid."""
    requests = [
        TraceRecord(arrival_s=0, input_tokens=17, output_tokens=1, hash_ids=[1, 2, 3], session=0),
        TraceRecord(arrival_s=5e-6, input_tokens=90, output_tokens=1, hash_ids=[1, 2, 3], session=1),
    ]
    assert [r.blocks for r in open_workload(recorded(tmp_path, requests)).requests] == [(1, 2), (1, 2, 3)]
