"""ServeGen windows: rates that hold on average however bursty, families, lengths, merging, choosing."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from loadgen.errors import TraceFormatError
from loadgen.trace import ServeGenTrace, TraceRecord
from loadgen.trace.draws import Gaps, stationary_events
from loadgen.trace.servegen_files import read_clients

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
    """A process that began with a whole gap would have (CV^2 - 1)/2 too many: 4.5 of 30 in the worst case here."""
    rng = _RNG(1)
    counts = [len(stationary_events(family, shape, 30.0, rng)) for _ in range(4000)]
    error = cv * math.sqrt(30 / 4000)  # the variance of a count is about CV^2 x its mean
    assert abs(np.mean(counts) - 30) < 4 * error < 1.2


@pytest.mark.parametrize(("family", "shape"), [(Gaps.GAMMA, 0.25), (Gaps.WEIBULL, 0.7)])
def test_gaps_have_the_family_s_spread(family: Gaps, shape: float) -> None:
    times = stationary_events(family, shape, 50_000.0, _RNG(2))
    gaps = np.diff(times)
    moment = math.gamma(1 + 2 / shape) / math.gamma(1 + 1 / shape) ** 2
    expected = math.sqrt(1 / shape if family is Gaps.GAMMA else moment - 1)
    assert gaps.std() / gaps.mean() == pytest.approx(expected, rel=0.05)
    assert np.all(gaps >= 0)


def test_clients_are_merged_in_order_of_time(folder: Path) -> None:
    requests = _read(ServeGenTrace(folder))
    arrivals = _arrivals(requests)
    assert arrivals == sorted(arrivals)
    counts = {tenant: sum(one.tenant == tenant for one in requests) for tenant in ("client-0", "client-7")}
    assert counts["client-7"] == pytest.approx(1800, abs=4 * math.sqrt(1800))
    assert counts["client-0"] == pytest.approx(1800, abs=4 * math.sqrt(1200 + 5 * 600))
    assert all(600 <= one.arrival_s < 1200 for one in requests if one.tenant == "client-7")


def test_a_stretch_of_time_is_that_of_the_whole(folder: Path) -> None:
    part = _read(ServeGenTrace(folder, start_s=650, end_s=750))
    assert part == [one for one in _read(ServeGenTrace(folder)) if 650 <= one.arrival_s < 750]
    assert len(part) == pytest.approx(300, abs=70)


def test_chosen_clients_and_scaled_rates(folder: Path) -> None:
    requests = _read(ServeGenTrace(folder, clients=(7,), volume=0.1))
    assert {request.tenant for request in requests} == {"client-7"}
    assert len(requests) == pytest.approx(180, abs=4 * math.sqrt(180))
    assert all(600 <= arrival < 1200 for arrival in _arrivals(requests))  # time itself is not scaled


def test_lengths_come_from_the_histograms(folder: Path) -> None:
    requests = _read(ServeGenTrace(folder, end_s=600))
    assert {request.input_tokens for request in requests} == {64, 128}
    assert {request.output_tokens for request in requests} == {32}


def test_equal_seeds_give_equal_requests(folder: Path) -> None:
    one, again, other = (_read(ServeGenTrace(folder, end_s=60, seed=seed)) for seed in (3, 3, 4))
    assert one == again != other


def test_lengths_hold_until_the_next_window_that_has_some(tmp_path: Path) -> None:
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


def test_window_length_is_that_of_the_files(folder: Path) -> None:
    assert read_clients(folder)[1] == 600.0


@pytest.mark.parametrize(
    "row",
    ["0,1.0,1.0,Pareto,1.0,1.0", "0,1.0", "x,1.0,1.0,Gamma,1.0,1.0", "0,1.0,1.0,Gamma,0,1.0", "0,1.0,1,Gamma,nan,1"],
)
def test_a_window_that_is_none_is_named(tmp_path: Path, row: str) -> None:
    _client(tmp_path, 1, ["0,0,0,,0,0", row])
    with pytest.raises(TraceFormatError, match=r"chunk-1-trace\.csv:2: "):
        read_clients(tmp_path)
