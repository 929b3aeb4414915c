"""The search as a user sees it: where it begins, how long it says it will take, what each probe came to."""

import re

import pytest

from loadgen.cli.main import main
from loadgen.selftest.process import BlastServer

FLAGS = ("--input-len", "16", "--output-len", "5", "--pause", "0", "--no-scrape", "--probe-requests", "12")


def said(server: BlastServer, capsys: pytest.CaptureFixture[str], *flags: str) -> str:
    assert main(["run", "--url", server.url, *FLAGS, *flags]) == 0
    return capsys.readouterr().out


def test_a_search_begins_from_a_short_run_and_says_how_long_it_takes(
    server: BlastServer, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ("--find-max", "concurrency", "--slo", "ttft=9s", "--max-probes", "2")
    text = said(server, capsys, *flags)
    begin = re.search(
        r"The full server does about ([\d.,]+) requests/s\. The search begins at (\d+) concurrent and takes about "
        r"(\d+ s|\d+ min), at most (\d+ s|\d+ min) \(2 probes\)\.",
        text,
    )
    assert begin is not None, text
    assert text.index("full server") < begin.start() < text.index("Probe 1:")
    first = re.search(r"Probe 1: (\d+) concurrent, ([\d,]+) requests, about", text)
    assert first is not None
    assert first[1] == begin[2]
    # Beside other work the generator may be late itself: what the probe came to is not said here.
    assert re.search(r"\n  (holds|does not hold|not clear yet): \d+ of \d+ within the SLOs", text)


def test_limits_that_nothing_keeps_end_the_search_below_a_sixteenth(
    server: BlastServer, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("loadgen.cli.search._OCTAVES_DOWN", 1)
    text = said(server, capsys, "--find-max", "rate", "--slo", "ttft=1us", "--duration", "100ms")
    values = [float(value) for value in re.findall(r"Probe \d+: ([\d.]+) requests/s,", text)]
    assert len(values) == 2
    assert values[1] == pytest.approx(values[0] / 2, rel=0.01)
    assert "does not hold: 0 of" in text
    assert "no value held the SLOs" in text


def test_quiet_says_nothing_of_it(server: BlastServer, capsys: pytest.CaptureFixture[str]) -> None:
    text = said(server, capsys, "--find-max", "concurrency", "--slo", "ttft=9s", "--max-probes", "1", "--quiet")
    assert "Probe" not in text
    assert "The search begins" not in text
