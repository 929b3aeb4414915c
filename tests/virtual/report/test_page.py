"""The page: complete, self-contained, small, and deterministic, for runs of any size."""

import dataclasses
import json
import math
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from serving.errors import ConfigError
from serving.virtual.report.latencies import Slo
from serving.virtual.report.simulation_page import report_page, write_page
from serving.virtual.result import DecisionRecord, SimResult
from tests.virtual.report.made import made_result, made_step

SLO = Slo(ttft_s=2.0, tpot_s=0.05)
LIMIT_BYTES = 3_000_000
VOID = {"meta", "link", "input", "br"}


class Outline(HTMLParser):
    """Open tags, ids, links, and the text of the table of decisions."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.kinds: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """A tag opens."""
        found = dict(attrs)
        self.ids += [str(found["id"])] if "id" in found else []
        self.links += [str(found[name]) for name in ("href", "src", "xlink:href") if name in found]
        self.kinds += [str(found["data-kind"])] if "data-kind" in found else []
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """A tag without content."""
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        """A tag closes."""
        if tag not in VOID:
            assert self.open, tag
            assert self.open.pop() == tag


def outline(page: str) -> Outline:
    """Parse a page."""
    found = Outline()
    found.feed(page)
    found.close()
    assert found.open == []
    return found


def test_nothing_is_loaded_from_outside() -> None:
    page = report_page(made_result(200), SLO, step_cost=made_step())
    found = outline(page)
    assert all(link.startswith(("#", "data:")) for link in found.links)
    assert {link[1:] for link in found.links if link.startswith("#")} <= set(found.ids)
    assert len(found.ids) == len(set(found.ids))
    own = re.sub(r"<script>/\*!.*?</script>", "", page, flags=re.DOTALL)
    assert re.findall(r"https?://[a-z]+\.", own) == []
    assert "@import" not in page
    assert "default-src 'none'" in page


def test_texts_are_escaped() -> None:
    result = made_result(20)
    evil = DecisionRecord(1.0, "<evil>", "</script><script>", "a & b", '"><img src=x>')
    page = report_page(dataclasses.replace(result, name="<script>", decisions=[evil], config={"<b>": "<u>"}))
    assert "<evil>" not in page
    assert "<img" not in page
    assert page.count("<script>") == report_page(result).count("<script>")
    outline(page)


def bare() -> SimResult:
    """An empty run."""
    result = made_result(0, points=0, faults=False)
    totals = dataclasses.replace(result.totals, end_s=0.0, npu_seconds=0.0)
    return dataclasses.replace(result, instances=[], decisions=[], decision_counts={}, config={}, totals=totals)


def none_finished() -> SimResult:
    """All requests rejected."""
    result = made_result(50)
    columns = result.requests
    for n in range(50):
        columns.first_token_s[n] = columns.finish_s[n] = math.nan
        columns.outcome[n] = 1
    return result


@pytest.mark.parametrize("slo", [None, Slo(), Slo(tpot_s=0.05), SLO])
@pytest.mark.parametrize(
    "result", [bare(), none_finished(), made_result(1, points=1), made_result(2, points=2), made_result(7)]
)
def test_small_runs_have_a_page(result: SimResult, slo: Slo | None) -> None:
    page = report_page(result, slo)
    outline(page)
    assert not re.search(r">\s*(nan|inf|None)\b", page)


def charts_of(page: str) -> dict[str, dict[str, Any]]:
    """Charts by id."""
    data = page.split('id="chart-data">')[1].split("</script>")[0]
    return {chart["id"]: chart for chart in json.loads(data)}


def test_without_a_step_or_faults_there_is_no_such_section_and_the_charts_show_the_run() -> None:
    result = made_result(400)
    charts = charts_of(report_page(result, SLO, step_cost=made_step()))
    assert len(charts) == 19
    over_time = [chart for chart in charts.values() if chart.get("group") == "time"]
    assert {(chart["x"]["low"], chart["x"]["high"]) for chart in over_time} == {(0.0, result.totals.end_s)}
    assert [marks["name"] for marks in over_time[0]["marks"]] == ["scaling", "fault"]
    assert not {"low", "high"} & charts["cdf-tpot"]["x"].keys(), "a distribution begins where its values do"
    assert charts["cdf-ttft"]["limits"] == [{"name": "SLO 2 s", "value": 2.0, "vertical": True}]
    assert [line["name"] for line in charts["line-rate"]["lines"]] == ["arrived", "finished", "within the SLOs"]
    assert charts["line-npus"]["lines"][0]["steps"]
    page = report_page(made_result(20, faults=False))
    assert 'id="faults"' not in page
    assert 'id="layer"' not in page
    assert 'id="layer"' in report_page(made_result(20), step_cost=made_step(microbatch=False))


def test_many_requests_make_no_large_page_and_the_newest_decisions_are_kept() -> None:
    result = made_result(200_000, points=20_000)
    many = [
        DecisionRecord(n / 9, f"kind {n % 9}", f"request-{n}", f"prefill-{n % 6}", "because " * 80)
        for n in range(30_000)
    ]
    result = dataclasses.replace(result, decisions=many, faults=result.faults * 2000, instances=result.instances * 600)
    page = report_page(result, SLO, step_cost=made_step())
    assert len(page.encode()) < LIMIT_BYTES
    assert "The first 1,500 of 6,000." in page
    rare = DecisionRecord(0.0, "scale", "decode", "2 instances", "why")
    often = [DecisionRecord(float(n), "route", f"r{n}", "x", "y") for n in range(1, 1000)]
    page = report_page(dataclasses.replace(made_result(5), decisions=[rare, *often]))
    assert [kind for kind in outline(page).kinds if kind in ("scale", "route")] == ["scale"] + ["route"] * 300
    assert '<td class="text">r999</td>' in page
    assert '<td class="text">r699</td>' not in page


def test_writing_to_a_file(tmp_path: Path) -> None:
    """The same result gives the same bytes, at any speed of the run."""
    result = made_result(200)
    write_page(tmp_path / "report.html", dataclasses.replace(made_result(200), wall_s=77.0), SLO)
    assert (tmp_path / "report.html").read_text(encoding="utf-8") == report_page(result, SLO)
    with pytest.raises(ConfigError, match=r"cannot write .*Is a directory"):
        write_page(tmp_path, result)
