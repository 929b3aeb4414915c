"""The command line: refusals, output, and files."""

import json
import os
from pathlib import Path

import pytest

from serving.cli import main
from serving.tools.chaos.chaos_run import ChaosProgress
from tests.tools.chaos.fake_system import FakeSystem

SHIPPED = Path(__file__).resolve().parents[3] / "deploy" / "chaos"
SHORT = """
[scenario]
duration_s = 1.0
first_s = 0.2
every_s = 0.5
spread = 0.0
quiet_s = 0.5
settle_s = 2.0
[load]
rate_per_s = 12
asks = 4
longest_tokens = 16
[[faults]]
kind = "kill"
"""


@pytest.fixture
def scenario(tmp_path: Path) -> str:
    path = tmp_path / "short.toml"
    path.write_text(SHORT)
    system = f'[scenario]\nconfig = "{SHIPPED}/two-of-each.toml"\n'
    die = '[[fault]]\nat_s = 1\nkind = "die"\ntarget = "n0.npu0.die0"\n'
    (tmp_path / "short.toml.die").write_text(system + die)
    (tmp_path / "short.toml.none").write_text(system)
    return str(path)


def test_a_clean_run_exits_with_zero_and_leaves_its_reports(
    scenario: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "deep" / "out"
    with FakeSystem() as system:
        assert main(["chaos", "--scenario", scenario, "--url", system.url, "--out", str(out), "--seed", "3"]) == 0
    printed = capsys.readouterr()
    assert "nothing lost, nothing different, nothing left behind" in printed.out
    assert "token-exact" in printed.out
    assert "kill" in printed.err, "every fault has a line"
    assert json.loads((out / "report.json").read_bytes())["clean"] is True
    assert 'id="faults"' in (out / "report.html").read_text()


def test_a_lost_request_exits_with_one(scenario: str, capsys: pytest.CaptureFixture[str]) -> None:
    with FakeSystem(cut_at_loss=True) as system:
        assert main(["chaos", "--scenario", scenario, "--url", system.url, "--quiet", "--json"]) == 1
    printed = capsys.readouterr()
    assert json.loads(printed.out)["failed"] > 0
    assert printed.err == ""


def test_the_plan_is_printed_and_nothing_done(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["chaos", "--scenario", str(SHIPPED / "kills.toml"), "--plan", "--seed", "1"]
    assert main(words) == 0
    first = capsys.readouterr().out
    assert main(words) == 0
    assert capsys.readouterr().out == first
    assert len(first.splitlines()) == 89


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--scenario", "none.toml"], "name one with --scenario"),
        (["--scenario", f"{SHIPPED}/flood.toml", "--url", "http://127.0.0.1:1"], "both --api-key and --flood-api-key"),
        (["--scenario", "{scenario}.die"], "cloudmatrix chaos cannot do [[fault]] at 1 s: die. It can do kill"),
        (["--scenario", "{scenario}.none"], "no [[faults]] with a weight above 0, no [[fault]] and no [rates]"),
        (["--scenario", "{scenario}"], "give --config FILE, or --url"),
        (["--scenario", "{scenario}", "--url", "http://127.0.0.1:1"], "nothing listens at"),
        (["--scenario", "{scenario}", "--config", "none.toml"], "none.toml: name one with --config"),
        (["--scenario", "{scenario}", "--url", "http://127.0.0.1:1", "--out", "{scenario}/x"], "name another folder"),
    ],
)
def test_mistakes_are_told_in_one_line(
    words: list[str], told: str, scenario: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["chaos", "--quiet", *(word.format(scenario=scenario) for word in words)]) in (2, 3, 4)
    error = capsys.readouterr().err
    assert told in error
    assert error.count("\n") == 1


def test_a_run_goes_on_when_nobody_reads_it_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    with os.fdopen(writing, "w") as pipe:
        monkeypatch.setattr("sys.stderr", pipe)
        with ChaosProgress(10.0, quiet=False) as progress:
            os.close(reading)
            progress.stage("waiting for what is under way")
            progress.stage("looking for leaks")
        assert os.path.samestat(os.fstat(pipe.fileno()), os.stat(os.devnull)), "what is still said goes nowhere"
