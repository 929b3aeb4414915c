"""Comparisons of saved runs: repetitions, single runs, sweeps; differing settings; warnings."""

import io
import json
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from loadgen.cli.main import main
from loadgen.compare.comparison import ComparedFigure, ComparisonVerdict, Method, RunComparison, verdict_of
from loadgen.compare.pairs import compare_paths
from loadgen.compare.report import WIDTH, change_chart, comparison_page, comparisons_json, print_comparisons
from loadgen.errors import TraceFormatError, UsageError
from loadgen.record import RequestRecord
from loadgen.report.chart import BarChart, LineChart
from loadgen.report.page import render
from loadgen.result import CacheUse, Generator, Repetition, RunResult
from loadgen.run_folder import SWEEP, RunFolder, write_json
from tests.loadgen.report.browser import inspect
from tests.loadgen.run_report.samples import make_records, make_result, make_sweep


def _save(folder: Path, result: RunResult, records: Sequence[RequestRecord] = ()) -> Path:
    with RunFolder(folder) as writer:
        writer.append(records)
        writer.write_result(result, {})
    return folder


def _repeated(ttfts: Sequence[float], rates: Sequence[float]) -> RunResult:
    result = make_result(make_records(requests=30, failures=0.0))
    throughput = result.throughput
    result.repetitions = [
        Repetition(
            requests=30,
            duration_s=5.0,
            throughput=msgspec.structs.replace(throughput, requests_per_s=rate),
            means={"ttft": ttft},
            p99={"ttft": 3 * ttft},
        )
        for ttft, rate in zip(ttfts, rates, strict=True)
    ]
    return result


def compare_folders(paths: Sequence[Path]) -> list[RunComparison]:
    return [pair.comparison for pair in compare_paths(paths)]


def _figure(comparison: RunComparison, name: str) -> tuple[float | None, ComparisonVerdict]:
    figure = next(figure for figure in comparison.figures if figure.name == name)
    return figure.ratio, figure.verdict


def test_repetitions(tmp_path: Path) -> None:
    before = _save(tmp_path / "before", _repeated([0.10, 0.11, 0.105], [8.0, 8.1, 7.9]))
    after = _save(tmp_path / "after", _repeated([0.15, 0.16, 0.155], [8.1, 8.0, 7.95]))
    (comparison,) = compare_folders([before, after])
    assert comparison.method is Method.REPETITIONS
    ratio, verdict = _figure(comparison, "TTFT mean")
    assert ratio == pytest.approx(1.476, abs=0.01)
    assert verdict is ComparisonVerdict.WORSE
    assert _figure(comparison, "Request throughput")[1] is ComparisonVerdict.NOT_SHOWN
    assert _figure(compare_folders([after, before])[0], "TTFT p99")[1] is ComparisonVerdict.BETTER
    assert comparison.settings == []


def test_single_runs_and_folders_of_several(tmp_path: Path) -> None:
    records = make_records(requests=200, failures=0.0)
    slower = make_records(requests=200, failures=0.0)
    for record in slower:
        times = record.chunks()
        record.chunk_times = type(times)("d", [time + 0.05 for time in times]).tobytes()
    before = _save(tmp_path / "before", make_result(records), records)
    after = _save(tmp_path / "after", make_result(slower), slower)
    (comparison,) = compare_folders([before, after])
    assert comparison.method is Method.PAIRED
    assert _figure(comparison, "TTFT p50")[1] is ComparisonVerdict.WORSE
    assert _figure(comparison, "TPOT mean")[1] is ComparisonVerdict.NOT_SHOWN
    assert _figure(comparison, "Output throughput")[1] is ComparisonVerdict.UNKNOWN
    assert any("ignore what differs from run to run" in text for text in comparison.warnings)
    assert compare_folders([before, after]) == [comparison]  # the same seed, the same intervals

    for side in ("a", "b"):
        for number in range(3):
            records = make_records(requests=60, seed=number, failures=0.0)
            _save(tmp_path / side / str(number), make_result(records))
    (comparison,) = compare_folders([tmp_path / "a", tmp_path / "b"])
    assert comparison.method is Method.REPETITIONS
    ratio, verdict = _figure(comparison, "E2E mean")
    assert ratio == pytest.approx(1.0)
    assert verdict is ComparisonVerdict.NOT_SHOWN


def test_runs_of_other_plans_and_results_without_requests(tmp_path: Path) -> None:
    folders = []
    for seed in (1, 2):
        records = make_records(requests=200, seed=seed, failures=0.0, rate_per_s=2.0)
        folders.append(_save(tmp_path / str(seed), make_result(records), records))
    (comparison,) = compare_folders(folders)
    assert comparison.method is Method.REQUESTS
    assert _figure(comparison, "TPOT mean")[1] is ComparisonVerdict.NOT_SHOWN

    result = make_result(make_records(requests=40))
    paths = []
    for name in ("one.json", "two.json"):
        write_json(tmp_path / name, {"loadgen": msgspec.to_builtins(result)})
        paths.append(tmp_path / name)
    (comparison,) = compare_folders(paths)
    assert comparison.method is Method.NONE
    assert _figure(comparison, "TTFT mean") == (1.0, ComparisonVerdict.UNKNOWN)


def test_what_differs_and_what_to_know(tmp_path: Path) -> None:
    records = make_records(requests=60, failures=0.1)
    first = make_result(records)
    second = make_result(records, rate_per_s=9.0, model="other", interrupted=True)
    second.settings["out"] = "elsewhere"
    second.generator = Generator(workers=1, cpu_share=1.0, loop_lag_p99_s=0.1, is_bottleneck=True)
    (comparison,) = compare_folders([_save(tmp_path / "a", first), _save(tmp_path / "b", second)])
    differing = {one.name: (one.baseline, one.other) for one in comparison.settings}
    assert differing == {"model": ("demo", "other"), "request_rate": (8.0, 9.0)}
    text = "\n".join(comparison.warnings)
    assert "b was interrupted" in text
    assert "generator was the bottleneck" in text
    assert "of the requests failed" in text


def test_a_replay_that_finds_its_prompts_in_the_cache_is_told(tmp_path: Path) -> None:
    records = make_records(requests=30)
    sides = []
    for name, cached in (("first", 0), ("replay", 750), ("again", 780)):
        result = make_result(records)
        result.cache = CacheUse(reported_by=30, cached_tokens=cached, input_tokens=1000)
        sides.append(_save(tmp_path / name, result, records))
    first, replay, again = sides
    words = f"0% in {first} and 75% in {replay} came from a cache"
    assert any(words in warning for warning in compare_folders([first, replay])[0].warnings)
    assert not any("cache" in warning for warning in compare_folders([replay, again])[0].warnings)


def test_sweeps_are_compared_where_they_have_the_same_load(tmp_path: Path) -> None:
    for name, rates in (("a", (2, 4, 8)), ("b", (4, 8, 10)), ("c", (16, 20))):
        sweep = make_sweep(rates=rates, requests=30)
        for point in sweep.points:
            _save(tmp_path / name / point.folder, point.result)
        write_json(tmp_path / name / "sweep.json", msgspec.to_builtins(sweep))
    comparisons = compare_folders([tmp_path / "a", tmp_path / "b"])
    assert [one.label for one in comparisons] == ["4 requests/s", "8 requests/s"]
    with pytest.raises(UsageError, match="no load in common"):
        compare_folders([tmp_path / "a", tmp_path / "c"])
    with pytest.raises(UsageError, match="sweep only"):
        compare_folders([tmp_path / "a", tmp_path / "a" / "rate-2"])


def test_what_cannot_be_compared(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="at least two"):
        compare_folders([tmp_path])
    with pytest.raises(UsageError, match=r"holds no result\.json"):
        compare_folders([tmp_path, tmp_path])
    (tmp_path / "result.json").write_text("{}")
    with pytest.raises(TraceFormatError):
        compare_folders([tmp_path, tmp_path])


@pytest.mark.parametrize(
    ("interval", "higher", "verdict"),
    [
        ((0.8, 0.9), False, ComparisonVerdict.BETTER), ((0.8, 0.9), True, ComparisonVerdict.WORSE),
        ((1.1, 1.2), False, ComparisonVerdict.WORSE),
        ((1.1, 1.2), True, ComparisonVerdict.BETTER), ((0.9, 1.1), True, ComparisonVerdict.NOT_SHOWN),
        ((1.0, 1.0), True, ComparisonVerdict.NOT_SHOWN),
        (None, True, ComparisonVerdict.UNKNOWN),
    ],
)  # fmt: skip
def test_verdicts(interval: tuple[float, float] | None, higher: bool, verdict: ComparisonVerdict) -> None:
    assert verdict_of(interval, higher_is_better=higher) is verdict


def test_table_and_json(tmp_path: Path) -> None:
    before = _save(tmp_path / "before", _repeated([0.10, 0.11, 0.105], [8.0, 8.1, 7.9]))
    after = _save(tmp_path / "after", _repeated([0.15, 0.16, 0.155], [8.1, 8.0, 7.95]))
    comparisons = compare_folders([before, after])
    file = io.StringIO()
    print_comparisons(comparisons, Console(file=file, width=WIDTH))
    text = file.getvalue()
    row = next(line for line in text.splitlines() if line.startswith("TTFT mean"))
    assert row.split()[-1] == "worse"
    assert "105 ms" in row
    assert "one in twenty" in " ".join(text.split())
    assert max(len(line) for line in text.splitlines() if "before" not in line) <= WIDTH
    assert json.loads(comparisons_json(comparisons))[0]["schema"] == "loadgen-comparison/1"


def run(folder: Path, rate_per_s: float, **changes: object) -> Path:
    records = make_records(rate_per_s=rate_per_s, requests=60, failures=0.0)
    return _save(folder, make_result(records, rate_per_s=rate_per_s, **changes), records)


def sweep(folder: Path, rates: Sequence[float]) -> Path:
    made = make_sweep(rates=rates, requests=30)
    for point in made.points:
        _save(folder / point.folder, point.result)
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


def test_comparisons_on_a_page(tmp_path: Path) -> None:
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

    paths = [run(tmp_path / name, 8.0) for name in "def"]
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
