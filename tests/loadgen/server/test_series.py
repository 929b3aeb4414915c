"""Looks to columns, rates, means; and the file of them."""

from pathlib import Path

import pytest

from loadgen.errors import OutputError, TraceFormatError, UsageError
from loadgen.server.exposition import MetricsPage
from loadgen.server.series import HIT_SHARE, MetricsLook, ServerSeries, npus, read_series, series_of, write_series

QUEUE = "vllm:request_queue_time_seconds"
LOOKS = [
    MetricsLook(
        99.0,
        MetricsPage(
            {"vllm:num_requests_running": 0.0},
            {"vllm:prompt_tokens_total": 1000.0, "vllm:prefix_cache_queries_total": 1000.0},
            {QUEUE: 4.0},
            {QUEUE: 10.0},
        ),
    ),
    MetricsLook(
        101.0,
        MetricsPage(
            {"vllm:num_requests_running": 5.0},
            {
                "vllm:prompt_tokens_total": 1500.0,
                "vllm:prefix_cache_queries_total": 1500.0,
                "vllm:prefix_cache_hits_total": 100.0,  # it appears with its first event
            },
            {QUEUE: 7.0},
            {QUEUE: 16.0},
        ),
    ),
    MetricsLook(
        102.0,
        MetricsPage(
            {},
            {
                "vllm:prompt_tokens_total": 1500.0,
                "vllm:prefix_cache_queries_total": 1500.0,
                "vllm:prefix_cache_hits_total": 100.0,
            },
            {QUEUE: 7.0},
            {QUEUE: 16.0},
        ),
    ),
]


def test_columns() -> None:
    series = series_of(LOOKS, 100.0)
    assert series.times_s == [-1.0, 1.0, 2.0]
    assert series.values == {
        "vllm:num_requests_running": [0.0, 5.0, None],
        "vllm:prompt_tokens_per_s": [None, 250.0, 0.0],
        "vllm:prefix_cache_queries_per_s": [None, 250.0, 0.0],
        "vllm:prefix_cache_hits_per_s": [None, 50.0, 0.0],
        f"{QUEUE}_mean": [None, 0.5, None],
        HIT_SHARE: [None, 0.2, None],
    }


def test_a_restarted_server_gives_gaps_not_negative_rates() -> None:
    before = MetricsLook(0.0, MetricsPage({}, {"vllm:prompt_tokens_total": 900.0}, {QUEUE: 9.0}, {QUEUE: 3.0}))
    after = MetricsLook(1.0, MetricsPage({}, {"vllm:prompt_tokens_total": 10.0}, {QUEUE: 1.0}, {QUEUE: 1.0}))
    assert series_of([before, after], 0.0).values == {
        "vllm:prompt_tokens_per_s": [None, None],
        f"{QUEUE}_mean": [None, None],
    }


def test_npus_are_those_of_the_largest_system_seen() -> None:
    assert npus(ServerSeries([0.0, 1.0, 2.0], {"cloudmatrix:npus": [16.0, None, 32.0]})) == 32
    assert npus(ServerSeries([0.0], {"cloudmatrix:npus": [0.0]})) is None
    assert npus(series_of(LOOKS, 100.0)) is None


def test_no_looks() -> None:
    assert series_of([], 0.0) == ServerSeries()


def test_the_file(tmp_path: Path) -> None:
    series = series_of(LOOKS, 100.0)
    write_series(tmp_path, series)
    assert read_series(tmp_path) == series
    assert len((tmp_path / "server_metrics.jsonl").read_text().splitlines()) == 3


def test_no_file_without_looks(tmp_path: Path) -> None:
    write_series(tmp_path, ServerSeries())
    assert read_series(tmp_path) is None


def test_a_file_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="cannot write"):
        write_series(tmp_path / "missing", series_of(LOOKS, 100.0))


@pytest.mark.parametrize("line", ["nonsense", '{"vllm:x": 1}', '{"t_s": null}', '{"t_s": 1, "vllm:x": "y"}', "[]"])
def test_lines_that_are_none(tmp_path: Path, line: str) -> None:
    (tmp_path / "server_metrics.jsonl").write_text('{"t_s": 0.0}\n' + line + "\n")
    with pytest.raises(TraceFormatError, match=r"server_metrics\.jsonl:2: not a line of server metrics"):
        read_series(tmp_path)


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "server_metrics.jsonl").mkdir()
    with pytest.raises(UsageError, match="cannot read"):
        read_series(tmp_path)
