"""report.md and report.html: the same rows give the same bytes, and the page is self-contained."""

import html
import json
import re
from pathlib import Path

import pytest

from hardware.cost.published import RowKind
from loadgen.report.chart import BarChart, ScatterChart
from serving.errors import ConfigError
from serving.tools.paper.experiment import Curve, Experiment, Findings, How, Plot, Row, Setting
from serving.tools.paper.paper_page import SHOWN, part_charts, report_page, write_report
from serving.tools.paper.paper_tables import error_table_markdown, report_markdown
from serving.tools.paper.registry import EXPERIMENTS, choose
from serving.tools.paper.reproduction import Reproduction, reproduce
from tests.loadgen.report.browser import checked
from tests.tools.paper.conftest import LONG


def page_of(done: Reproduction) -> str:
    return report_page(done, device="a device", model="a model")


def test_the_same_seed_gives_the_same_bytes() -> None:
    one, two, other = (reproduce(choose(["fig24"]), Setting(seed=seed, quick=True)) for seed in (3, 3, 4))
    assert report_markdown(one) == report_markdown(two) != report_markdown(other)
    assert page_of(one) == page_of(two)


def test_an_experiment_does_not_depend_on_what_ran_before_it(everything: Reproduction) -> None:
    alone = reproduce(choose(["fig24"]), Setting(quick=True)).parts[0]
    (among,) = [part for part in everything.parts if part.experiment.name == "fig24"]
    assert alone.findings == among.findings


def test_the_page_is_complete_and_asks_for_nothing(everything: Reproduction) -> None:
    page = page_of(everything)
    for part in everything.parts:
        assert f'<h2 id="{part.experiment.name}">' in page
    charts = json.loads(page.split('id="chart-data">')[1].split("</script>")[0])
    assert {part.experiment.name for part in everything.parts} == {chart["id"].rsplit("-", 2)[0] for chart in charts}
    assert not re.search(r'(?:src|href)="(?!#|data:)', page)
    assert "@import" not in page
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len(set(ids))


def test_text_is_escaped() -> None:
    rows = (Row("row", "<b>bold</b>", 1.0, 1.0, "<i>", How.RUN, "a & b", RowKind.PREDICTED),)
    plots = (Plot("p", "x", "y", (Curve("ours", (1, 2), (1, 2)), Curve("published", (1, 2), (2, 1), published=True))),)
    experiment = Experiment("test", "<script>alert()</script>", "by hand", lambda _: Findings(rows, ("<u>",), plots))
    page = page_of(reproduce([experiment], Setting(quick=True)))
    assert "<script>alert" not in page
    assert "<b>bold" not in page
    assert "<u>" not in page


def test_figures_stand_beside_each_other_with_their_error() -> None:
    rows = (
        Row("a", "one", 100.0, 104.0, "ms", How.RUN, "s", RowKind.FITTED),
        Row("b", "two", 0.0, 5.0, "ms", How.RUN, "s", RowKind.FITTED),
    )
    plots = (Plot("p", "x", "y", (Curve("ours", (1, 2), (1, 2)), Curve("paper", (1, 2), (2, 1), published=True))),)
    experiment = Experiment("test", "t", "by hand", lambda _: Findings(rows, (), plots))
    (part,) = reproduce([experiment], Setting(quick=True)).parts
    curves, bars = part_charts(part)
    assert isinstance(curves, ScatterChart)
    assert [(trace.name, trace.joined) for trace in curves.traces] == [("ours", True), ("paper", False)]
    assert isinstance(bars, BarChart)
    assert bars.lanes == ["one", "two"]
    assert [(bar.lane, bar.part, bar.end, bar.after) for bar in bars.bars] == [
        (0, 0, 100.0, ""), (0, 1, 104.0, "+4.0 %"), (1, 0, 0.0, ""), (1, 1, 5.0, "–"),
    ]  # fmt: skip


def test_every_experiment_stands_in_whole_tables(everything: Reproduction) -> None:
    for text in (report_markdown(everything), error_table_markdown(everything)):
        tables = [line for line in text.splitlines() if line.startswith("|")]
        assert {line.count("|") for line in tables} <= {7, 8}
        assert "nan" not in text
        assert everything.score.text in text

    table = error_table_markdown(everything)
    for part in everything.parts:
        assert f"| {part.experiment.name} |" in table


def test_files_are_written_or_the_reason_is_told(tmp_path: Path) -> None:
    done = reproduce(choose(["table11"]), Setting(quick=True))
    markdown, page, drawing = write_report(tmp_path, done, Setting(quick=True))
    assert drawing.read_text().startswith("<svg")
    assert markdown.read_text().startswith("# Published figures reproduced")
    assert page.read_text().startswith("<!DOCTYPE html>")
    with pytest.raises(ConfigError, match="cannot write"):
        write_report(tmp_path / "absent", done, Setting(quick=True))


def test_the_readme_holds_the_short_table(everything: Reproduction) -> None:
    """Labels, published figures and ways are the same; errors to the last digit, which another processor may change."""
    text = (Path(__file__).parents[3] / "serving" / "virtual" / "README.md").read_text(encoding="utf-8")
    begin, end = "<!-- reproduced: cloudmatrix reproduce --quick --markdown -->", "<!-- /reproduced -->"
    written = text.partition(begin)[2].partition(end)[0].strip().splitlines()
    printed = error_table_markdown(everything).strip().splitlines()
    if LONG not in {part.experiment.name for part in everything.parts}:
        begins = tuple(f"| {part.experiment.name} |" for part in everything.parts)
        written, printed = ([line for line in lines if line.startswith(begins)] for lines in (written, printed))
        assert printed
    assert len(written) == len(printed), "paste what `cloudmatrix reproduce --quick --markdown` prints"
    for ours, theirs in zip(written, printed, strict=True):
        assert ours.split("|")[:4] == theirs.split("|")[:4]
        errors, now = (
            [float(found.replace("−", "-")) for found in re.findall(r"([+−]?\d+\.\d) %", line)]
            for line in (ours, theirs)
        )
        assert errors == pytest.approx(now, abs=0.2), f"{ours}\nis now\n{theirs}"


def test_every_experiment_has_words_and_the_navigation_is_narrow(everything: Reproduction) -> None:
    page = page_of(everything)
    assert {experiment.name for experiment in EXPERIMENTS} == set(SHOWN)
    for part in everything.parts:
        assert html.escape(SHOWN[part.experiment.name].replace("`", "")) in page
    assert page.index("<svg") < page.index('id="overview"'), "the summary comes first"
    links = re.findall(r'<a href="#([^"]+)">([^<]+)</a>', page.partition("<nav")[2].partition("</nav>")[0])
    assert links == [
        ("summary", "Summary"),
        ("overview", "Experiments"),
        ("table1", "Tables"),
        ("fig20", "Figures"),
        ("xds-peak", "xDeepServe"),
        ("other-revive", "Others"),
    ]


@pytest.mark.timeout(120)
def test_the_page_in_a_browser(everything: Reproduction, tmp_path: Path) -> None:
    checked(page_of(everything), tmp_path)
