"""The command line: which steps, which folder, which exit code."""

import re
from pathlib import Path

import pytest

from serving.cli import demo, main
from serving.tools.demo import demo_run, simulate_step, stage
from serving.tools.demo.stage import StepError, StepReport
from tests.pages import ROOT
from tests.tools.demo.staging import small_step


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every run starts in an empty folder."""
    monkeypatch.chdir(tmp_path)


def test_names_and_titles_are_those_of_the_readme() -> None:
    assert tuple(step.name for step in demo_run.STEPS) == demo.NAMES
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert re.findall(r"^\*\*\d\. (.*)\.\*\*", text, re.MULTILINE) == [step.title for step in demo_run.STEPS]


@pytest.mark.parametrize(
    ("only", "skip", "left"),
    [
        ([], [], demo.NAMES),
        (["kill", "chat"], [], ("chat", "kill")),
        ([], ["load", "simulate"], ("chat", "cache", "kill", "scale")),
    ],
)
def test_steps_are_chosen_by_name(only: list[str], skip: list[str], left: tuple[str, ...]) -> None:
    assert tuple(step.name for step in demo_run.chosen_steps(only, skip)) == left


def test_mistakes_start_nothing(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["demo", "--only", "chat", "--skip", "chat"]) == 2
    assert "no step is left" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "file").touch()
    assert main(["demo", "--out", "old"]) == 2
    assert "not empty" in capsys.readouterr().err


def test_a_step_without_a_system_starts_none_and_ends_with_a_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(simulate_step, "LOAD", "--poisson 20 --prompt 512 --output 8 --duration 1s --quiet")
    (tmp_path / "demo-report").mkdir()
    assert main(["demo", "--only", "simulate"]) == 0
    said = capfd.readouterr().out
    assert "starting a system" not in said
    report = tmp_path / "demo-report-2" / "report.html"
    assert f"report: {report.as_uri()}" in said
    assert 'id="supernode"' in report.read_text()
    assert (report.parent / "simulate" / "report.html").exists()


def test_a_failed_step_exits_with_one(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def run(_: stage.Stage) -> StepReport:
        raise StepError("it is gone")

    monkeypatch.setattr(demo_run, "STEPS", (small_step("chat", run),))
    assert main(["demo", "--out", "new"]) == 1
    assert "failed: it is gone" in capsys.readouterr().out
    assert "it is gone" in Path("new/report.html").read_text()


def test_a_system_that_does_not_start_is_a_mistake(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "system.toml"
    config.write_text(f'[model]\npath = "{tmp_path}/no-model"\n[cluster]\ndashboard_port = 0\n')
    monkeypatch.setattr(stage, "CONFIG", config)
    assert main(["demo", "--only", "chat", "--out", "new"]) == 3
    assert "no model folder" in capsys.readouterr().err
