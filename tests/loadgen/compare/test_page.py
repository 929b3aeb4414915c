"""The page of a comparison: two runs, several runs, two sweeps."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from loadgen.cli.main import main
from loadgen.compare.change_chart import change_chart
from loadgen.compare.comparison import ComparedFigure, ComparisonVerdict
from loadgen.compare.page import comparison_page
from loadgen.compare.pairs import compare_paths
from loadgen.record import RequestRecord
from loadgen.report.chart import BarChart, LineChart
from loadgen.report.html import render
from loadgen.result import RunResult
from loadgen.run_folder import SWEEP, RunFolder, write_json
from tests.loadgen.report.browser import inspect
from tests.loadgen.run_report.samples import make_records, make_result, make_sweep


def save(folder: Path, result: RunResult, records: Sequence[RequestRecord] = ()) -> Path:
    with RunFolder(folder) as writer:
        writer.append(records)
        writer.write_result(result, {})
    return folder


def run(folder: Path, rate_per_s: float, **changes: object) -> Path:
    records = make_records(rate_per_s=rate_per_s, requests=60, failures=0.0)
    return save(folder, make_result(records, rate_per_s=rate_per_s, **changes), records)


def sweep(folder: Path, rates: Sequence[float]) -> Path:
    made = make_sweep(rates=rates, requests=30)
    for point in made.points:
        save(folder / point.folder, point.result)
    write_json(folder / SWEEP, made)
    return folder


def figure(name: str, ratio: float | None, ci95: tuple[float, float] | None, verdict: str) -> ComparedFigure:
    return ComparedFigure(
        name=name, unit="s", higher_is_better=False, baseline=1.0, other=ratio, ratio=ratio, ci95=ci95,
        verdict=ComparisonVerdict(verdict),
    )  # fmt: skip


def test_changes_stand_beside_each_other_with_their_intervals() -> None:
    chart = change_chart(
        [
            figure("TTFT", 1.5, (1.2, 2.0), "worse"),
            figure("none", None, None, "not known"),
            figure("rate", 0.9, None, "not known"),
        ],
        "changes",
    )
    assert chart is not None
    assert chart.lanes == ["TTFT", "rate", ""]
    assert [(bar.lane, bar.start, bar.end, chart.keys[bar.key].color) for bar in chart.bars] == [
        (0, 0.2, 1.0, "red"),
        (1, -0.1, 0.0, "blue"),
    ]
    assert [bar.after for bar in chart.bars] == ["+50.0 %", "−10.0 %"]
    assert chart.bars[0].text == "TTFT: +50.0 % (+20.0 % to +100.0 %)"
    assert change_chart([figure("none", None, None, "not known")], "changes") is None


def test_two_runs(tmp_path: Path) -> None:
    page = comparison_page(compare_paths([run(tmp_path / "a", 8.0), run(tmp_path / "b", 9.5)]))
    assert page.title == f"{tmp_path / 'b'} against {tmp_path / 'a'}"
    assert [anchor for anchor, _ in page.navigation] == ["differences", "metrics", "conditions"]
    assert {chart.id for chart in page.charts} == {
        "changes", "ttft-percentiles", "e2e-percentiles", "tpot-percentiles", "itl-percentiles",
    }  # fmt: skip
    assert isinstance(page.charts[0], BarChart)
    text = render(page, "loadgen")
    assert '<th scope="row" class="text">request_rate</th><td class="long">8.0</td><td class="long">9.5</td>' in text
    assert "One run of each" in text


def test_several_runs_have_sections_of_their_own(tmp_path: Path) -> None:
    paths = [run(tmp_path / name, 8.0) for name in "abc"]
    page = comparison_page(compare_paths(paths))
    assert len({chart.id for chart in page.charts}) == len(page.charts) == 10
    assert "conditions-1" in dict(page.navigation)
    assert render(page, "loadgen").count("All settings, the server and the model are the same.") == 2


def test_two_sweeps_over_the_loads_that_both_have(tmp_path: Path) -> None:
    page = comparison_page(compare_paths([sweep(tmp_path / "a", (2, 8, 12)), sweep(tmp_path / "b", (8, 2, 14))]))
    charts = {chart.id: chart for chart in page.charts}
    tokens = charts["tokens"]
    assert isinstance(tokens, LineChart)
    assert tokens.xs == [2, 8]
    assert [line.name for line in tokens.lines] == ["baseline", "other"]
    ttft = charts["ttft"]
    assert isinstance(ttft, LineChart)
    assert [line.name for line in ttft.lines] == ["baseline p50", "baseline p99", "other p50", "other p99"]
    assert render(page, "loadgen").count("<details><summary>2 requests/s: ") == 1


def test_the_command_writes_the_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = [str(run(tmp_path / "a", 8.0)), str(run(tmp_path / "b", 9.5))]
    assert main(["compare", *paths, "-o", str(tmp_path / "page.html")]) == 0
    assert capsys.readouterr().out.endswith(f"{tmp_path / 'page.html'}\n")
    seen = inspect(tmp_path / "page.html", width=390, dark=True)
    assert (seen["errors"], seen["ready"]) == ("", "yes")
    assert seen["overflow"] <= 0
    assert all(figure["drawn"] == "yes" for figure in seen["figures"].values())
    assert main(["compare", *paths, "-o", str(tmp_path / "missing" / "page.html")]) == 4
