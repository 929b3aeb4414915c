"""ServeGen windows: rates that hold on average however bursty, families, lengths, merging, choosing."""

import json
import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from loadgen.errors import TraceFormatError
from loadgen.trace import ServeGenTrace, TraceRecord, in_sessions, open_trace
from loadgen.trace.draws import Gaps, stationary_events
from loadgen.trace.lines import TraceTimes
from loadgen.trace.servegen import read_clients
from tests.cases.traces import line, mooncake, recorded, written

_RNG = np.random.default_rng


def _client(folder: Path, number: int, rows: list[str], lengths: dict[str, dict[str, str]] | None = None) -> None:
    (folder / f"chunk-{number}-trace.csv").write_text("\n".join(rows) + "\n")
    lengths = lengths or {"0": {"input_tokens": "{64: 0.5, 128: 0.5}", "output_tokens": "{32: 1.0}"}}
    (folder / f"chunk-{number}-dataset.json").write_text(json.dumps(lengths))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    _client(tmp_path, 0, ["0,2.0,1.0,Gamma,1.0,0.5", "600,0,0,,0,0", "1200,1.0,2.0,Weibull,0.5,0.5"])
    _client(tmp_path, 7, ["0,0,0,,0,0", "600,3.0,1.0,Gamma,1.0,9.9", "1200,0,0,,0,0"])
    return tmp_path


def _read(trace: ServeGenTrace) -> list[TraceRecord]:
    return list(trace.requests())


def _arrivals(requests: list[TraceRecord]) -> list[float]:
    return [request.arrival_s for request in requests]


@pytest.mark.parametrize(
    ("family", "shape", "cv"),
    [
        (Gaps.GAMMA, 4.0, 0.5),
        (Gaps.GAMMA, 0.1, math.sqrt(10)),
        (Gaps.WEIBULL, 1.0, 1.0),
        (Gaps.WEIBULL, 0.5, math.sqrt(5)),
    ],
)
def test_as_many_events_as_the_rate_says_however_bursty(family: Gaps, shape: float, cv: float) -> None:
    """A process that started with a whole gap would have (CV^2 - 1)/2 too many: 4.5 of 30 in the worst case of this
    test.
    """
    rng = _RNG(1)
    counts = [len(stationary_events(family, shape, 30.0, rng)) for _ in range(2000)]
    error = cv * math.sqrt(30 / 2000)  # the variance of a count is about CV^2 x its mean
    assert abs(np.mean(counts) - 30) < 4 * error < 1.6


@pytest.mark.parametrize(("family", "shape"), [(Gaps.GAMMA, 0.25), (Gaps.WEIBULL, 0.7)])
def test_gaps_have_the_family_s_spread(family: Gaps, shape: float) -> None:
    times = stationary_events(family, shape, 50_000.0, _RNG(2))
    gaps = np.diff(times)
    moment = math.gamma(1 + 2 / shape) / math.gamma(1 + 1 / shape) ** 2
    expected = math.sqrt(1 / shape if family is Gaps.GAMMA else moment - 1)
    assert gaps.std() / gaps.mean() == pytest.approx(expected, rel=0.05)
    assert np.all(gaps >= 0)


def test_clients_are_merged_and_chosen(folder: Path) -> None:
    requests = _read(ServeGenTrace(folder))
    arrivals = _arrivals(requests)
    assert arrivals == sorted(arrivals)
    counts = {tenant: sum(one.tenant == tenant for one in requests) for tenant in ("client-0", "client-7")}
    assert counts["client-7"] == pytest.approx(1800, abs=4 * math.sqrt(1800))
    assert counts["client-0"] == pytest.approx(1800, abs=4 * math.sqrt(1200 + 5 * 600))
    assert all(600 <= one.arrival_s < 1200 for one in requests if one.tenant == "client-7")

    part = _read(ServeGenTrace(folder, start_s=650, end_s=750))
    assert part == [one for one in _read(ServeGenTrace(folder)) if 650 <= one.arrival_s < 750]
    assert len(part) == pytest.approx(300, abs=70)
    requests = _read(ServeGenTrace(folder, clients=(7,), volume=0.1))
    assert {request.tenant for request in requests} == {"client-7"}
    assert len(requests) == pytest.approx(180, abs=4 * math.sqrt(180))
    assert all(600 <= arrival < 1200 for arrival in _arrivals(requests))  # time itself is not scaled
    requests = _read(ServeGenTrace(folder, end_s=600))
    assert {request.input_tokens for request in requests} == {64, 128}
    assert {request.output_tokens for request in requests} == {32}
    one, again, other = (_read(ServeGenTrace(folder, end_s=60, seed=seed)) for seed in (3, 3, 4))
    assert one == again != other

    assert read_clients(folder)[1] == 600.0


def test_lengths_hold_until_the_next_window(tmp_path: Path) -> None:
    lengths = {
        "0": {"input_tokens": "{}", "output_tokens": "{}"},
        "600": {"input_tokens": "{5: 1.0}", "output_tokens": "{1: 1.0}"},
        "1200": {"input_tokens": "{}", "output_tokens": "{}"},
        "1800": {"input_tokens": "{6: 1.0}", "output_tokens": "{1: 1.0}"},
    }
    _client(tmp_path, 1, ["0,1.0,1.0,Gamma,1.0,1.0"], lengths)
    [client], _ = read_clients(tmp_path)
    found = [client.lengths(at_s)[0].values.tolist() for at_s in (0.0, 700.0, 1300.0, 1800.0, 9999.0)]
    assert found == [[5], [5], [5], [6], [6]]


def test_histograms_may_be_text_or_mappings(tmp_path: Path) -> None:
    rows = ["0,1.0,1.0,Gamma,1.0,1.0"]
    _client(tmp_path, 1, rows, {"0": {"input_tokens": "{35: 0.25, 36: 0.75}", "output_tokens": "{1: 1.0}"}})
    text = _read(ServeGenTrace(tmp_path))
    _client(tmp_path, 1, rows)
    mapping = {"0": {"input_tokens": {"35": 0.25, "36": 0.75}, "output_tokens": {"1": 1.0}}}
    (tmp_path / "chunk-1-dataset.json").write_text(json.dumps(mapping))
    assert text == _read(ServeGenTrace(tmp_path))
    assert {request.input_tokens for request in text} == {35, 36}


@pytest.mark.parametrize(
    "row",
    ["0,1.0,1.0,Pareto,1.0,1.0", "0,1.0", "x,1.0,1.0,Gamma,1.0,1.0", "0,1.0,1.0,Gamma,0,1.0", "0,1.0,1,Gamma,nan,1"],
)
def test_a_window_that_is_none_is_named(tmp_path: Path, row: str) -> None:
    _client(tmp_path, 1, ["0,0,0,,0,0", row])
    with pytest.raises(TraceFormatError, match=r"chunk-1-trace\.csv:2: "):
        read_clients(tmp_path)


def groups(path: Path) -> Iterator[list[int]]:
    """Prompt lengths of each conversation."""
    return ([one.input_tokens for one in requests] for requests in in_sessions(open_trace(path)))


def test_requests_that_stand_alone_come_at_once(tmp_path: Path) -> None:
    found = groups(written(tmp_path, mooncake(line(0, 1), line(1, 2)) + "broken"))
    assert [next(found), next(found)] == [[1], [2]]
    with pytest.raises(TraceFormatError):
        next(found)


def test_sessions_that_stand_together_come_when_the_next_begins(tmp_path: Path) -> None:
    first, later, other = line(0, 1, session=0), line(5, 2, session=0, turn=1), line(1, 3, session=1)
    found = groups(written(tmp_path, recorded(first, later, other, requests=9)))
    assert next(found) == [1, 2]
    with pytest.raises(TraceFormatError, match="says 9 requests"):
        next(found)


def test_sessions_come_in_the_order_of_their_beginnings(tmp_path: Path) -> None:
    text = mooncake(
        line(0, 1),
        line(1, 2, session_id="a"),
        line(2, 3, session_id="b"),
        {"input_length": 4, "output_length": 1, "session_id": "a"},
        line(3, 5),
        {"input_length": 6, "output_length": 1, "session_id": "b"},
        line(4, 7, session_id="a"),  # at its own time, without waiting
        {"input_length": 8, "output_length": 1, "session_id": "a"},
    )
    assert list(groups(written(tmp_path, text))) == [[1], [2, 4], [3, 6], [5], [7, 8]]


def test_offsets_within_a_day_are_taken_as_they_stand(tmp_path: Path) -> None:
    notes: dict[str, str] = {}
    clock = TraceTimes(tmp_path, notes, per_s=1000.0)
    assert [clock.seconds(number, at) for number, at in enumerate([86_399_999.0, 86_400_000.5])] == [
        86_399_999.0 / 1000,
        86_400_000.5 / 1000,
    ]
    assert notes == {}


@pytest.mark.parametrize(
    ("per_s", "first", "second", "gap_s"),
    [(1.0, 1.7e9, 1.7e9 + 2, 2), (1.0, 1.7e12, 1.7e12 + 2000, 2), (1000.0, 1.7e12, 1.7e12 + 2000, 2),
     (1000.0, 1.7e15, 1.7e15 + 2e6, 2), (1.0, 1.7e18, 1.7e18 + 2**31, 2**31 / 1e9), (1.0, 90_000.0, 90_002.0, 2)],
)  # fmt: skip
def test_times_of_another_zero_count_from_the_first(
    tmp_path: Path, per_s: float, first: float, second: float, gap_s: float
) -> None:
    notes: dict[str, str] = {}
    clock = TraceTimes(tmp_path, notes, per_s=per_s)
    assert clock.seconds(1, first) == 0.0
    assert clock.seconds(2, second) == pytest.approx(gap_s, abs=1e-6)
    assert "count from" in notes["times"]
