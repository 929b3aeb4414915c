"""Two simulations: their reported difference, on the console, as JSON, on the page, and refusals."""

import dataclasses
import json
from pathlib import Path

import pytest

from serving.cli import main
from serving.errors import ConfigError
from serving.virtual.comparison.comparison import SimulationComparison, compare_runs
from serving.virtual.comparison.comparison_report import (
    change,
    comparison_page,
    curve_charts,
    figure_table,
    time_charts,
)
from serving.virtual.comparison.run_file import SimulatedRun, read_run
from serving.virtual.report.latencies import Slo
from serving.virtual.report.result_json import write_json
from serving.virtual.report.summary import summarize
from serving.virtual.result import SimResult
from tests.loadgen.report.browser import inspect
from tests.virtual.report.made import made_result

SLO = Slo(ttft_s=2.0, tpot_s=0.05)


def written(folder: Path, result: SimResult, *, requests: bool = True) -> Path:
    """Folder of a run."""
    folder.mkdir()
    write_json(folder / "result.json", result, summarize(result, SLO), requests=requests)
    return folder


def slower(result: SimResult, by_s: float = 0.5) -> SimResult:
    """The same requests, each first token and end later; fewer NPUs."""
    rows = result.requests
    for column in (rows.first_token_s, rows.finish_s):
        for row, at in enumerate(column):
            column[row] = at + by_s
    return dataclasses.replace(result, config={**result.config, "prefill": "2 x 16 NPUs", "new": "<b>yes</b>"})


@pytest.fixture
def sides(tmp_path: Path) -> tuple[Path, Path]:
    return written(tmp_path / "a", made_result(300)), written(tmp_path / "b", slower(made_result(300)))


@pytest.fixture
def compared(sides: tuple[Path, Path]) -> SimulationComparison:
    return compare_runs(*map(read_run, sides))


def test_figures_have_both_values_and_the_same_requests_are_compared_one_by_one(compared: SimulationComparison) -> None:
    rows = {row.cells[0]: row.cells for row in figure_table(compared).rows}
    assert rows["requests finished"][1] == rows["requests finished"][2]
    changed = rows["TTFT mean"][3]
    assert (changed.text[0], changed.tone) == ("+", "bad")  # type: ignore[attr-defined]
    within = next(one for one in compared.figures if one.name == "within the SLOs")
    assert change(within).endswith(" points")
    before = compared.baseline.config.get("prefill", "")
    assert compared.settings == [("prefill", before, "2 x 16 NPUs"), ("new", "", "<b>yes</b>")]
    ttft = compared.paired[0]
    assert (ttft.name, ttft.faster, ttft.slower) == ("TTFT", 0, ttft.pairs)
    assert (ttft.median_s, ttft.least_s, ttft.most_s) == pytest.approx((0.5, 0.5, 0.5), abs=1e-6)


@pytest.mark.parametrize("other", [made_result(299), made_result(0, points=0)])
def test_other_requests_are_not(tmp_path: Path, other: SimResult) -> None:
    first = read_run(written(tmp_path / "a", made_result(300)))
    assert compare_runs(first, read_run(written(tmp_path / "b", other))).paired == []


def test_without_rows_there_are_figures_and_curves_all_the_same(tmp_path: Path) -> None:
    first, second = (read_run(written(tmp_path / name, made_result(50), requests=False)) for name in ("a", "b"))
    compared = compare_runs(first, second)
    assert (compared.paired, compared.settings, compared.warnings[1:]) == ([], [], compared.warnings[:-1])
    assert {one.change for one in compared.figures} <= {0.0, None}
    curves = curve_charts(first, second)
    assert [chart.id for chart in curves] == ["cdf-ttft_s", "cdf-tpot_s", "cdf-e2e_s"]
    assert {chart.x.low for chart in curves} == {None}, "they begin where the values do"
    assert all(len(chart.lines) == 2 for chart in time_charts(first, second))
    assert "All settings are the same." in comparison_page(compared)


def test_what_makes_apples_of_pears_is_said(tmp_path: Path) -> None:
    first = read_run(written(tmp_path / "a", made_result(300)))
    other = dataclasses.replace(made_result(50), workload="another", seed=8, name="another model")
    said = " ".join(compare_runs(first, read_run(written(tmp_path / "b", other))).warnings)
    for words in ("Other loads", "Other seeds, 7 and 8", "Other models", "did not finish"):
        assert words in said


def test_the_command_prints_and_writes(
    sides: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["compare", *map(str, sides)]
    assert main([*words, "--out", str(tmp_path / "out")]) == 0
    printed = capsys.readouterr()
    assert "TTFT p99" in printed.out
    assert "2 x 16 NPUs" in printed.out
    assert "compare.html" in printed.err
    page = (tmp_path / "out" / "compare.html").read_text(encoding="utf-8")
    assert "&lt;b&gt;yes" in page
    assert "<b>yes" not in page
    assert "0.00000" not in page, "rounding errors are no difference"
    assert main([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["figures"][0]["name"] == "requests finished"
    assert found["settings"][0]["other"] == "2 x 16 NPUs"


@pytest.mark.timeout(120)
@pytest.mark.parametrize(("width", "dark"), [(390, True), (1280, False)])
def test_the_page_in_a_browser(compared: SimulationComparison, tmp_path: Path, width: int, dark: bool) -> None:
    (tmp_path / "compare.html").write_text(comparison_page(compared), encoding="utf-8")
    seen = inspect(tmp_path / "compare.html", width=width, dark=dark)
    assert (seen["errors"], seen["ready"]) == ("", "yes")
    assert seen["overflow"] <= 0
    assert all(figure["drawn"] == "yes" for figure in seen["figures"].values())
    inked = seen["figures"]["cdf-ttft_s"]["colours"]
    assert all(seen["palette"][name] in inked for name in ("blue", "orange")), "both runs"


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (None, "holds no result.json: run `cloudmatrix simulate --out"),
        (b"no JSON", "is no result.json of `cloudmatrix simulate`"),
        (b"[" * 500, "is no result.json of `cloudmatrix simulate`"),
        (b'{"schema": 5}', "is no result.json of `cloudmatrix simulate`"),
    ],
)
def test_what_is_no_run_is_refused_in_one_line(tmp_path: Path, content: bytes | None, told: str) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    if content is not None:
        (folder / "result.json").write_bytes(content)
    with pytest.raises(ConfigError, match=told) as caught:
        read_run(folder)
    assert "\n" not in str(caught.value)


def test_files_of_another_schema_and_older_ones(sides: tuple[Path, Path]) -> None:
    file = sides[0] / "result.json"
    file.write_bytes(file.read_bytes().replace(b"cloudmatrix-simulation/1", b"cloudmatrix-simulation/9"))
    with pytest.raises(ConfigError, match="simulate again"):
        read_run(sides[0])
    file = sides[1] / "result.json"
    document = json.loads(file.read_bytes())
    del document["curves"]
    file.write_text(json.dumps(document))
    old: SimulatedRun = read_run(file)
    assert curve_charts(old, old) == []
    assert comparison_page(compare_runs(old, old))


def test_a_folder_in_the_files_place_is_refused(tmp_path: Path) -> None:
    (tmp_path / "result.json").mkdir()
    with pytest.raises(ConfigError, match=r"result\.json"):
        read_run(tmp_path)
