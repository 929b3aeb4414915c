"""The command: its output, its files, and its exit code."""

from pathlib import Path

import pytest

from serving.cli import command_parser
from serving.errors import ConfigError
from serving.tools.paper import reproduction
from serving.tools.paper.registry import EXPERIMENTS


def run(*flags: str) -> int:
    arguments = command_parser("reproduce").parse_args(["reproduce", *flags])
    code: int = arguments.run(arguments)
    return code


def test_the_list_names_every_experiment(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--list") == 0
    shown = capsys.readouterr().out
    assert all(experiment.name in shown for experiment in EXPERIMENTS)


def test_two_experiments_with_their_files(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    folder = tmp_path / "new" / "folder"
    assert run("--only", "table11, table2", "--quick", "--out", str(folder)) == 0
    shown = capsys.readouterr().out
    assert shown.index("table2:") < shown.index("table11:")
    assert "Predicted: no row; apart from these, within 5%:" in shown
    assert sorted(path.name for path in folder.iterdir()) == ["report.html", "report.md", "summary.svg"]


def test_the_readme_table_and_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--only", "table7", "--markdown") == 0
    captured = capsys.readouterr()
    assert captured.out.splitlines()[2].startswith("| experiment |")
    assert captured.err == ""


def test_an_unexplained_row_is_a_failure(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--only", "xds-split") == 0
    monkeypatch.delitem(reproduction.KNOWN_MISSES, ("xds-split", "attention"))
    assert run("--only", "xds-split") == 1
    assert "UNEXPLAINED" in capsys.readouterr().out


def test_mistakes_are_told_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no experiment 'figure23'"):
        run("--only", "figure23")
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot write into"):
        run("--only", "table11", "--out", str(tmp_path / "file" / "folder"))
