"""Percentiles, goodput and requests that count in neither."""

import math
from array import array

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.virtual.report.latencies import Slo, distribution, good_requests, goodput, latencies
from serving.virtual.result import Outcome, RequestColumns

NAN = math.nan


def columns(*rows: tuple[float, float, float, int, Outcome]) -> RequestColumns:
    """Requests by arrival, first token, finish, output tokens and outcome."""
    arrival, first, finish, output, outcome = zip(*rows, strict=True) if rows else ((),) * 5
    zeros = array("q", [0] * len(rows))
    return RequestColumns(
        array("d", arrival), array("d", first), array("d", finish), array("q", [10] * len(rows)), array("q", output),
        zeros, zeros, array("q", [1] * len(rows)), array("b", outcome),
        array("d", [0.25] * len(rows)), array("d", [NAN] * len(rows)),
    )  # fmt: skip


MIXED = columns(
    (1.0, 2.0, 4.0, 5, Outcome.FINISHED),
    (2.0, 2.5, 2.5, 1, Outcome.FINISHED),
    (3.0, NAN, NAN, 0, Outcome.REJECTED),
    (4.0, 9.0, NAN, 3, Outcome.FAILED),
    (5.0, 5.5, NAN, 7, Outcome.UNFINISHED),
)


def test_latencies_of_each_outcome() -> None:
    times = latencies(MIXED)
    np.testing.assert_allclose(times.ttft_s, [1.0, 0.5, NAN, 5.0, 0.5])
    np.testing.assert_allclose(times.tpot_s, [0.5, NAN, NAN, NAN, NAN])
    np.testing.assert_allclose(times.e2e_s, [3.0, 0.5, NAN, NAN, NAN])
    assert times.one_token == 1
    assert times.counted.tolist() == [True, True, True, True, False]


@given(st.lists(st.one_of(st.floats(0, 1e6), st.just(NAN)), max_size=60))
def test_a_distribution_is_numpys_over_what_is_there(values: list[float]) -> None:
    found = distribution(np.array(values, dtype=float))
    present = [value for value in values if not math.isnan(value)]
    assert found.count == len(present)
    if not present:
        assert all(math.isnan(one) for one in (found.mean, found.p50, found.p90, found.p99, found.maximum))
        return
    expected = np.percentile(present, [50, 90, 99])
    assert [found.p50, found.p90, found.p99] == pytest.approx(expected.tolist())
    assert (found.mean, found.maximum) == pytest.approx((float(np.mean(present)), max(present)))


def test_goodput_counts_only_what_finished_in_time() -> None:
    found = goodput(latencies(MIXED), Slo(ttft_s=0.9, tpot_s=0.6), 10.0)
    assert (found.good, found.counted) == (1, 4)
    assert found.good_per_s == pytest.approx(0.1)
    assert (found.attainment, found.ttft_attainment, found.tpot_attainment) == (0.25, 0.25, 0.5)
    assert found.untestable == 1
    assert good_requests(latencies(MIXED), Slo(ttft_s=1.0, tpot_s=0.5)).tolist() == [True, True, False, False, False]
    assert goodput(latencies(MIXED), Slo(), 10.0).good == 2
    assert not Slo()
    assert Slo(tpot_s=0.05)
    nothing = goodput(latencies(columns()), Slo(ttft_s=1.0), 0.0)
    assert (nothing.good, nothing.counted, nothing.good_per_s) == (0, 0, 0.0)
    assert math.isnan(nothing.attainment)


@given(st.floats(0.01, 20), st.floats(0.01, 20))
def test_a_looser_limit_never_lowers_goodput(one: float, other: float) -> None:
    times = latencies(MIXED)
    tight, loose = (goodput(times, Slo(ttft_s=limit), 1.0).good for limit in sorted((one, other)))
    assert tight <= loose
