"""The report in a real browser: every plot draws all of its curves, no script fails, no element overflows."""

from collections.abc import Sequence
from pathlib import Path

from loadgen.report.chart import BarChart, Chart, ScatterChart
from loadgen.run_report.report_file import sweep_page, write_report
from loadgen.run_report.run_page import run_page
from loadgen.server.series import ServerSeries
from tests.loadgen.report.browser import inspect, inspect_all
from tests.loadgen.run_report.samples import make_records, make_result, make_series, make_sweep


def _check(seen: dict, charts: Sequence[Chart]) -> None:
    """No error, and each chart has pixels of the colour of each of its curves."""
    assert seen["errors"] == ""
    assert seen["ready"] == "yes"
    assert seen["overflow"] <= 0
    assert set(seen["figures"]) == {chart.id for chart in charts}
    for chart in charts:
        figure = seen["figures"][chart.id]
        assert figure["drawn"] == "yes", chart.id
        assert figure["pointed"], f"{chart.id}: arrow keys show no value"
        assert figure["left"] == "", f"{chart.id}: Escape leaves a value"
        group = getattr(chart, "group", "")
        together = sum(getattr(other, "group", "") == group for other in charts) if group else 1
        assert figure["zoomed"] == together, f"{chart.id}: a drag zooms its whole group"
        for color in _expected_colors(chart):
            assert _pixels(figure["colours"], seen["palette"][color]) > 20, (chart.id, color)


def _expected_colors(chart: Chart) -> set[str]:
    """Colours that must be visible; of curves that may cover each other only the one drawn last."""
    if isinstance(chart, BarChart):
        present = {chart.keys[bar.key].color for bar in chart.bars}
        return present & {"orange", "blue", "red"}  # the others are short
    if isinstance(chart, ScatterChart):
        return {trace.color for trace in chart.traces}
    told = [line for line in chart.lines if any(value is not None for value in line.values)]
    return {told[-1].color}


def _pixels(colours: dict[str, int], wanted: str) -> int:
    """Pixels of about one colour; half transparent ones are rounded."""
    target = [int(part) for part in wanted.split(",")]
    return sum(
        count
        for colour, count in colours.items()
        if all(abs(int(part) - aim) <= 4 for part, aim in zip(colour.split(","), target, strict=True))
    )


def test_run(tmp_path: Path) -> None:
    records = make_records(requests=120, failures=0.05)
    result, series = make_result(records), make_series(records)
    write_report(tmp_path / "report.html", result, records=records, server_series=series)
    for seen in inspect_all(tmp_path / "report.html", (390, 1280), dark=True):
        assert (seen["theme"], seen["other_theme"]) == ("dark", "light")
        _check(seen, run_page(result, records=records, server_series=series).charts)


def test_sweep(tmp_path: Path) -> None:
    sweep = make_sweep(requests=60)
    write_report(tmp_path / "report.html", sweep)
    _check(inspect(tmp_path / "report.html", width=900, dark=False), sweep_page(sweep).charts)


def test_hostile_and_poor_results(tmp_path: Path) -> None:
    """Text from a server ends no script and becomes no markup; a run without any success still has a page."""
    records = make_records(requests=40, failures=0.0)
    result = make_result(records, timeline=[], metrics={}, slo=None, cache=None, steady_state=None)
    result.model = "</script><script>throw new Error('inside')</script>"
    result.warnings = ["<img src=x onerror=\"throw new Error('markup')\">"]
    series = ServerSeries([0.0, 1.0], {"</script><script>throw new Error('data')</script>": [1.0, 2.0]})
    write_report(tmp_path / "report.html", result, server_series=series)
    seen = inspect(tmp_path / "report.html", width=700, dark=False)
    assert (seen["errors"], seen["ready"], list(seen["figures"])) == ("", "yes", ["server-0"])
