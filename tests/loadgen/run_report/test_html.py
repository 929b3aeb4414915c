"""The report's file: self-contained, small, escaped, and complete."""

import hashlib
import importlib.resources
import re
from pathlib import Path

import pytest

from loadgen.errors import OutputError
from loadgen.report.fragments import Html, html
from loadgen.report.table import columns, html_table, table_of
from loadgen.result import Generator, Repetition, SweepResult, TextSample
from loadgen.run_report.names import all_metrics, has_both_clocks
from loadgen.run_report.report_file import write_report
from tests.loadgen.run_report.samples import make_records, make_result, make_sweep

RECORDS = make_records(requests=80, failures=0.08)


def _report(tmp_path: Path, **changes: object) -> str:
    write_report(tmp_path / "report.html", make_result(RECORDS, **changes))  # type: ignore[arg-type]
    return (tmp_path / "report.html").read_text(encoding="utf-8")


def test_it_is_small_whole_and_as_it_is_named(tmp_path: Path) -> None:
    text = _report(tmp_path)
    assert len(text) < 300_000
    assert "default-src 'none'" in text
    own = re.sub(r"<script>!?function.*?</script>|<script>/\*!.*?</script>", "", text, flags=re.DOTALL)
    assert not re.search(r"(src|href)=\"(https?:)?//", own)
    assert "@import" not in own
    assert "MIT License" in text
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]

    assets = importlib.resources.files("loadgen.report") / "assets"
    stated = {
        name: digest
        for digest, name in re.findall(
            r"^([0-9a-f]{64})  (.+)$", (assets / "uPlot.SOURCE.txt").read_text(), re.MULTILINE
        )
    }
    assert set(stated) == {"uPlot.iife.min.js", "uPlot.min.css"}
    for name, digest in stated.items():
        assert hashlib.sha256((assets / name).read_bytes()).hexdigest() == digest


def test_text_from_outside_is_escaped(tmp_path: Path) -> None:
    text = _report(tmp_path, warnings=["<b>bold</b> & more"], model="<i>", metadata={"<k>": "<v>"})
    assert "&lt;b&gt;bold&lt;/b&gt; &amp; more" in text
    assert "<title>Load test of &lt;i&gt;</title>" in text
    assert "&lt;k&gt;" in text
    assert html("<") == "&lt;"
    assert html(Html("<p>")) == "<p>"
    assert "<td>&lt;x&gt;</td>" in html_table(table_of(columns("a", "b"), [["1", "<x>"]]))

    write_report(tmp_path / "report.html", make_sweep(rates=(2, 4), requests=30))
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    data = text.split('id="chart-data">')[1].split("</script>")[0]
    assert "<" not in data


def test_the_verdict_and_the_worst_warning_stand_at_the_top(tmp_path: Path) -> None:
    good = _report(tmp_path)
    assert "The generator kept up." in good
    generator = Generator(
        workers=2, cpu_share=0.98, loop_lag_p99_s=0.02, is_bottleneck=True, reasons=["too slow", "late"]
    )
    bad = _report(tmp_path, generator=generator, interrupted=True)
    assert "The generator was the bottleneck" in bad
    assert "<li>too slow</li>" in bad
    assert bad.index("The run was interrupted.") < bad.index('class="tiles"')

    text = _report(tmp_path, warnings=["the <worst>", "a second", "a third"])
    box = text[text.index('<details class="warnings">') :].partition("</details>")[0]
    assert "<b>3 warnings, the worst first.</b> the &lt;worst&gt;" in box.partition("</summary>")[0]
    assert "2 more" in box
    assert "<li>a second</li>\n<li>a third</li>" in box
    assert "1 more" in _report(tmp_path, warnings=["one", "two"])
    single = _report(tmp_path, warnings=["a single one"])
    assert "<li>a single one</li>" in single
    assert '<details class="warnings">' not in single

    generator = Generator(
        workers=1, cpu_share=0.1, loop_lag_p99_s=0.1, machine_was_busy=True, machine_reasons=["late", "others had them"]
    )
    text = _report(tmp_path, generator=generator)
    assert "The machine was busy" in text
    assert "<li>others had them</li>" in text
    assert "The generator was the bottleneck" not in text


def test_further_tables(tmp_path: Path) -> None:
    sample = TextSample(index=7, prompt="<p>ask", answer="say", input_tokens=3, output_tokens=None)
    text = _report(tmp_path, samples=[sample], npus=16)
    assert '<td class="long soft">&lt;p&gt;ask</td><td class="long">say</td><td>3 + –</td>' in text
    assert "per NPU (16 NPUs)" in text
    throughput = make_result(RECORDS).throughput
    runs = [
        Repetition(requests=75, duration_s=9.0, throughput=throughput, means={"ttft": 0.1234}, p99={"ttft": 0.5})
        for _ in range(3)
    ]
    assert 'id="repetitions"' in _report(tmp_path, repetitions=runs)
    assert 'id="repetitions"' not in _report(tmp_path, repetitions=runs[:1])
    result = make_result(RECORDS)
    result.metrics["ttft"].with_failures = {"50": 0.1, "90": None, "95": None, "99": None}
    write_report(tmp_path / "report.html", result)
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert text.count('<td class="bad">∞</td>') >= 3


def test_pages_of_sweeps(tmp_path: Path) -> None:
    write_report(tmp_path / "report.html", make_sweep(rates=(2, 8, 12), requests=40))
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert text.count('<tr class="best">') == 1
    assert 'href="rate-8/report.html"' in text
    assert "8 requests/s: the generator was the bottleneck" in text

    write_report(tmp_path / "report.html", SweepResult(parameter="rate", explanation="Nothing could be measured."))
    assert "Nothing could be measured." in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_what_is_not_shown_or_written(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="cannot write"):
        write_report(tmp_path / "missing" / "report.html", make_result(RECORDS))

    result = make_result(RECORDS)
    result.metrics["itl_token"] = result.metrics["itl"]
    result.metrics["ttfo"] = result.metrics["ttft"]
    assert not {"itl_token", "ttfo"} & {name for name, _ in all_metrics(result)}
    assert has_both_clocks(result)
    result.metrics["ttft_sent"], result.metrics["e2e_sent"] = result.metrics["ttft"], result.metrics["e2e"]
    assert not has_both_clocks(result)
