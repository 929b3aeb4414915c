"""The page in a real browser: no script error, no element wider than the screen, filter and cursor work."""

import json
from pathlib import Path

import pytest

from serving.virtual.report.latencies import Slo
from serving.virtual.report.simulation_page import report_page
from tests.loadgen.report.browser import inspect
from tests.virtual.report.made import made_result, made_step

pytestmark = pytest.mark.timeout(120)


@pytest.mark.parametrize(("width", "dark"), [(400, True), (1280, False)])
def test_the_page_in_a_browser(tmp_path: Path, width: int, dark: bool) -> None:
    page = report_page(made_result(300), Slo(ttft_s=2.0, tpot_s=0.05), step_cost=made_step())
    (tmp_path / "report.html").write_text(page, encoding="utf-8")
    seen = inspect(tmp_path / "report.html", width=width, dark=dark)
    assert (seen["errors"], seen["ready"]) == ("", "yes")
    assert seen["overflow"] <= 0
    assert {seen["theme"], seen["other_theme"]} == {"dark", "light"}
    assert seen["filters"] == ["150 of 150 rows", "0 of 150 rows", "56 of 56 rows", "6 of 56 rows"]
    charts = json.loads(page.split('id="chart-data">')[1].split("</script>")[0])
    assert list(seen["figures"]) == [chart["id"] for chart in charts]
    for chart in charts:
        figure = seen["figures"][chart["id"]]
        assert figure["drawn"] == "yes", chart["id"]
        assert figure["pointed"], f"{chart['id']}: arrow keys show no value"
        together = [other for other in charts if other.get("group") == chart.get("group")]
        assert figure["zoomed"] == (len(together) if "group" in chart else 1)
    assert "µs" in seen["figures"]["layer-bars"]["pointed"]
