"""The slowest requests: the selection, and that the parts of their time add up."""

import math
from array import array

import numpy as np
import pytest

from serving.virtual.report.latencies import latencies
from serving.virtual.report.simulation_page import slowest_charts, slowest_table, spans
from serving.virtual.result import Outcome, RequestColumns
from tests.virtual.report.made import made_requests

NAN = math.nan


def requests(*rows: tuple[float, float, float, float, float]) -> RequestColumns:
    """Finished ones, by arrival, queue, first token, adoption and finish; ten tokens each."""
    arrival, queue, first, adopted, finish = (array("d", column) for column in zip(*rows, strict=True))
    tens = array("q", [10] * len(rows))
    return RequestColumns(
        arrival, first, finish, tens, tens, tens, tens, array("q", [1] * len(rows)),
        array("b", [Outcome.FINISHED] * len(rows)), queue, adopted,
    )  # fmt: skip


def test_time_is_divided_at_its_boundaries() -> None:
    parts = spans(requests((1.0, 0.5, 2.0, 2.25, 5.0), (1.0, 0.5, 2.0, NAN, 5.0), (1.0, NAN, NAN, NAN, NAN)))
    assert parts.of(0) == pytest.approx((0.5, 0.5, 0.25, 2.75))
    assert parts.of(1) == pytest.approx((0.5, 0.5, NAN, 3.0), nan_ok=True), "computed where it was decoded"
    assert parts.of(2) == pytest.approx((NAN,) * 4, nan_ok=True), "rejected"


def test_parts_of_whole_requests_add_up_to_the_whole() -> None:
    made = made_requests(300, 60.0)
    times, parts = latencies(made), spans(made)
    whole = np.nansum([parts.queue_s, parts.prefill_s, parts.transfer_s, parts.decode_s], axis=0)
    np.testing.assert_allclose(whole[times.finished], times.e2e_s[times.finished])


def test_the_slowest_come_first_by_each_latency() -> None:
    made = requests((0.0, 0.1, 1.0, 1.1, 9.0), (1.0, 0.1, 3.0, 3.1, 4.0), (2.0, 0.1, 3.5, 3.6, 12.5))
    table = slowest_table(made, latencies(made))
    assert [(row.cells[0], row.kind) for row in table.rows] == [
        ("1", "TTFT"), ("2", "TTFT"), ("0", "TTFT"), ("2", "TPOT"), ("0", "TPOT"), ("1", "TPOT"),
        ("2", "end to end"), ("0", "end to end"), ("1", "end to end"),
    ]  # fmt: skip
    first, longest = slowest_charts(made, latencies(made))
    assert (first.lanes, longest.lanes) == (["1", "2", "0"], ["2", "0", "1"])
    assert [bar.text for bar in longest.bars[:4]] == [
        "no. 2: queue 100 ms", "no. 2: prefill 1.40 s", "no. 2: transfer 100 ms", "no. 2: decode 8.90 s",
    ]  # fmt: skip


def test_no_more_than_a_page_can_hold_and_of_nothing_nothing() -> None:
    made = made_requests(3000, 600.0)
    times = latencies(made)
    assert len(slowest_table(made, times).rows) == 150
    assert [len(chart.lanes) for chart in slowest_charts(made, times)] == [20, 20]
    none = RequestColumns()
    assert slowest_charts(none, latencies(none)) == []
    assert slowest_table(none, latencies(none)).rows == []
