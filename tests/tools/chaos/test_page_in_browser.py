"""The page of a run, in a browser: every plot is drawn, on a narrow dark page and on a wide light one."""

from pathlib import Path

import pytest

from serving.tools.chaos.findings import find
from serving.tools.chaos.page import report_page
from tests.loadgen.report.browser import inspect
from tests.tools.chaos.made import killed_stream, loss, run_of


@pytest.mark.timeout(120)
@pytest.mark.parametrize(("width", "dark"), [(390, True), (1280, False)])
def test_every_plot_is_drawn(tmp_path: Path, width: int, dark: bool) -> None:
    run = run_of(killed_stream(50, 40), events=(loss(1.99),))
    (tmp_path / "report.html").write_text(report_page(run, find(run)), encoding="utf-8")
    seen = inspect(tmp_path / "report.html", width=width, dark=dark)
    assert (seen["errors"], seen["ready"]) == ("", "yes")
    assert seen["overflow"] <= 0
    assert list(seen["figures"]) == ["stream", "faults", "flight", "tokens", "resumed", "replicas"]
    assert all(figure["drawn"] == "yes" for figure in seen["figures"].values())
    inked = seen["figures"]["stream"]["colours"]
    assert all(seen["palette"][name] in inked for name in ("blue", "violet")), "a curve for each replica"
