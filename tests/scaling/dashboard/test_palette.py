"""A pool has one colour, and grounds are the same, on pages, reports, the animation and boards: checked in pictures."""

import json
from pathlib import Path

import pytest

from deploy.grafana.source.all import FOLDER
from docs.printed.animation.__main__ import PICTURE
from loadgen.report.chart import Axis, Line, LineChart
from loadgen.report.page import Page as Report
from loadgen.report.page import render
from loadgen.report.palette import COLORS, NEUTRALS, POOLS
from tests.scaling.dashboard.chromium import Chromium
from tests.scaling.dashboard.conftest import FakeDashboard
from tests.scaling.dashboard.opened import open_page


@pytest.mark.asyncio
@pytest.mark.timeout(120)
@pytest.mark.parametrize("dark", [False, True])
async def test_pictures_show_the_same_colours(
    browser: Chromium, dashboard: FakeDashboard, tmp_path: Path, dark: bool
) -> None:
    report = Report("Pools")
    lines = [
        Line(name=pool, values=[1.0 + at] * 3, color=pool) for at, pool in enumerate(POOLS) if pool != "aggregated"
    ]
    chart = LineChart(
        id="pools", title="Pools", x=Axis(unit="number"), y=Axis(unit="count"), xs=[0.0, 1.0, 2.0], lines=lines
    )
    report.add("pools", "Pools", report.draw([chart]))
    (tmp_path / "report.html").write_text(render(report, "test"), encoding="utf-8")
    wanted = {pool: COLORS[color][dark] for pool, color in POOLS.items()}
    shown = {*wanted.values(), NEUTRALS["page"][dark], NEUTRALS["card"][dark]}
    dashboard.wish(load=0.8)
    async with browser.page() as page:
        await page.dark(dark)
        await open_page(page, dashboard)
        await page.wait("document.querySelector('.curve [data-pool=kvcache][d]')")
        assert shown <= await page.colors(), "the page of the pools"
        await page.go((tmp_path / "report.html").as_uri())
        await page.wait("document.querySelector('figure[data-drawn]')")
        assert shown <= await page.colors(), "a report"
        await page.go(PICTURE.as_uri())
        await page.run("document.documentElement.setCurrentTime(9)")
        assert {wanted["prefill"], wanted["decode"]} <= await page.colors(), "the animation"


@pytest.mark.parametrize("board", ["operator", "scaling"])
def test_boards_draw_pools_in_these_colours(board: str) -> None:
    panels = json.loads((FOLDER / f"{board}.json").read_text(encoding="utf-8"))["panels"]
    told = [one for one in panels if any(each["legendFormat"] == "{{pool}}" for each in one.get("targets", ()))]
    assert told
    for panel in told:
        fixed = [each["properties"][0]["value"]["fixedColor"] for each in panel["fieldConfig"]["overrides"]]
        assert fixed == [COLORS[name][1] for name in dict.fromkeys(POOLS.values())], panel["title"]
