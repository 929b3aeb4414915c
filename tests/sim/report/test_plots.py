"""Plots that other reports use: well-formed, the same every time, and whole for any input."""

import math
import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.sim.report.axis import clock_step, compact
from serving.sim.report.plots import (
    AxisOf,
    Candidate,
    Comparison,
    Limit,
    Mark,
    Series,
    bars,
    lines,
    pareto,
    pareto_front,
    thin,
)
from serving.sim.report.svg import PALETTE

PLANS = [
    Candidate("4:96", 160, 3.0, holds=False),
    Candidate("6:160", 256, 5.0, holds=True, best=True),
    Candidate("8:160 & more", 288, 5.0, holds=True),
]


def texts(svg: str) -> list[str]:
    """What is written in a drawing."""
    return ["".join(one.itertext()) for one in ET.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")]


def test_bars_show_errors_with_their_sign() -> None:
    rows = [Comparison("batch 96 <4K>", 1943, 1902), Comparison("none", 0, 5), Comparison("more", 100, 104)]
    written = texts(bars("b", "Decode & more", rows, unit="tokens/s"))
    assert {"−2.1 %", "–", "+4.0 %", "batch 96 <4K>", "published", "ours", "tokens/s"} <= set(written)
    assert math.isnan(rows[1].error)


def test_a_pareto_plot_names_the_best_and_tells_the_others() -> None:
    svg = pareto("p", "NPUs", PLANS)
    assert "6:160" in texts(svg)
    assert "<title>8:160 &amp; more: 288 NPUs, 5.00 requests/s</title>" in svg


def test_the_front_has_what_nothing_cheaper_beats() -> None:
    assert [one.label for one in pareto_front(PLANS)] == ["4:96", "6:160"]


@given(st.lists(st.tuples(st.integers(1, 50), st.integers(0, 20)), max_size=30))
def test_nothing_off_the_front_beats_it(points: list[tuple[int, int]]) -> None:
    candidates = [Candidate(str(n), npus, float(rate), holds=True) for n, (npus, rate) in enumerate(points)]
    front = pareto_front(candidates)
    for one in candidates:
        assert any(kept.npus <= one.npus and kept.goodput_per_s >= one.goodput_per_s for kept in front)


@pytest.mark.parametrize("draw", [lambda: bars("x", "t", []), lambda: pareto("x", "t", [])])
def test_nothing_to_show_is_said(draw: object) -> None:
    assert callable(draw)
    assert "nothing to show" in texts(draw())


def test_lines_are_the_same_every_time_and_refer_only_to_themselves() -> None:
    def draw() -> str:
        return lines(
            "one", "Title <b>", [Series("a", [0, 1, 2], [1, math.nan, 3]), Series("b", [0.0], [2.0], "red")],
            x=AxisOf("clock", low=0, high=2), y=AxisOf("share"), limits=[Limit("SLO", 9.0)],
            marks=[Mark(1.0, "red"), Mark(77.0, "red")],
        )  # fmt: skip

    svg = draw()
    assert svg == draw()
    names = {one.get("id") for one in ET.fromstring(svg).iter() if one.get("id")}
    assert all(str(name).startswith("one-") for name in names)
    assert set(re.findall(r'(?:href="|url\()#([^")]+)', svg)) <= names
    assert "SLO" in texts(svg)


def test_colours_follow_the_page() -> None:
    svg = lines("one", "t", [Series("a", [0, 1], [1, 2], "violet")], x=AxisOf(), y=AxisOf())
    assert f"var(--violet, {PALETTE['violet']})" in svg
    colours = set(re.findall(r"(?<!, )#[0-9a-f]{6}\b", svg))
    assert colours <= {"#000000"}
    assert len(set(PALETTE.values())) == len(PALETTE)


@pytest.mark.parametrize(("value", "shown"), [(0.5, "SLO"), (50.0, "SLO →"), (0.0001, "← SLO")])
def test_a_limit_outside_says_where_it_is(value: float, shown: str) -> None:
    axis = AxisOf("seconds", low=0.001, high=1.0)
    svg = lines(
        "x", "t", [Series("a", [0.1, 1], [0, 1])], x=axis, y=AxisOf(), limits=[Limit("SLO", value, vertical=True)]
    )
    assert shown in texts(svg)


@given(st.integers(1, 5000), st.integers(0, 2**32 - 1))
def test_thinned_curves_keep_ends_extremes_and_order(count: int, seed: int) -> None:
    ys = np.random.default_rng(seed).normal(size=count)
    xs, kept = thin(np.arange(count, dtype=float), ys, 50)
    assert len(xs) <= 102
    assert (xs[0], xs[-1]) == (0, count - 1)
    assert (kept.min(), kept.max()) == (ys.min(), ys.max())
    assert (np.diff(xs) > 0).all()


def test_gaps_are_thinned_too() -> None:
    xs, ys = thin(np.arange(1000.0), np.full(1000, math.nan), 10)
    assert len(xs) == len(ys) <= 12


@given(st.floats(1e-3, 1e8))
def test_ticks_of_time_are_few(span_s: float) -> None:
    assert 0 < span_s / clock_step(span_s) <= 6


def test_counts_in_little_room() -> None:
    assert [compact(value) for value in (950, 1500, 2e7, 3e9, 0.25)] == ["950", "1.5k", "20M", "3G", "0.25"]
