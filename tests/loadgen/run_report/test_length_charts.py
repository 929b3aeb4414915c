"""Histograms of lengths: every request in one bin, round edges."""

from hypothesis import given
from hypothesis import strategies as st

from loadgen.run_report.length_charts import MOST_BINS, bin_edges, length_charts
from tests.loadgen.run_report.samples import make_records


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=50))
def test_edges_hold_all_lengths_in_bins_of_equal_width(lengths: list[int]) -> None:
    edges = bin_edges(lengths)
    width = edges[1] - edges[0]
    assert edges == list(range(edges[0], edges[-1] + 1, width))
    assert str(width).rstrip("0") in ("1", "2", "5")
    assert 0 <= edges[0] <= min(lengths)
    assert max(lengths) < edges[-1]
    assert len(edges) <= MOST_BINS + 4


def test_every_request_is_counted_once() -> None:
    records = make_records(requests=80, failures=0.1)
    good = [record for record in records if record.outcome == "ok" and not record.warmup]
    charts = length_charts(records)
    assert [chart.id for chart in charts] == ["input-lengths", "output-lengths"]
    for chart in charts:
        assert sum(value or 0 for value in chart.lines[-1].values) == len(good)
        assert len(chart.lines) == 1


def test_answers_that_were_to_be_longer_have_a_second_curve() -> None:
    records = make_records(requests=20, failures=0.0)
    for record in records:
        record.planned_output_tokens, record.output_tokens, record.input_tokens = 200, 64, None
    (chart,) = length_charts(records)
    assert [line.name for line in chart.lines] == ["planned", "requests"]
    assert chart.note.startswith("All have 64.")
    assert length_charts([]) == []
