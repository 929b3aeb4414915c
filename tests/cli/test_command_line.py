"""Every command is declared in one form, is found quickly, and imports nothing heavy before it runs."""

import importlib
import json
import pkgutil
import subprocess
import sys

import pytest

import serving.cli
from serving.cli import command_parser, main
from serving.cli.command_line import COMMANDS
from serving.version import VERSION

HEAVY = {"torch", "ray", "numpy", "rich", "fastapi", "asyncio", "transformers", "matplotlib"}


def imported_by(code: str) -> set[str]:
    """Top-level modules that a fresh interpreter has loaded after running this code."""
    code = f"import json, sys\n{code}\nprint(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    return {name.partition(".")[0] for name in json.loads(done.stdout.splitlines()[-1])}


def test_help_of_all_imports_no_command() -> None:
    code = "from serving.cli import command_parser\ncommand_parser('').format_help()"
    found = imported_by(code)
    assert found & HEAVY == set()
    assert found & {"hardware", "loadgen", "urllib", "msgspec", "logging"} == set()


def test_parsers_of_all_commands_import_nothing_heavy() -> None:
    assert imported_by("from serving.cli import command_parser\ncommand_parser()") & HEAVY == set()


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_is_a_module_of_one_shape(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    module = importlib.import_module(f"serving.cli.{name.replace('-', '_')}")
    assert module.DESCRIPTION.endswith("\n")
    assert module.run.__doc__
    with pytest.raises(SystemExit) as ended:
        main([name, "--help"])
    assert ended.value.code == 0
    shown = unspaced(capsys.readouterr().out)
    assert unspaced(module.DESCRIPTION) in shown
    assert unspaced(module.EPILOG) in shown
    assert max(map(len, (module.DESCRIPTION + module.EPILOG).splitlines())) <= 120


def unspaced(text: str) -> str:
    """Text without blanks and line breaks, which depend on the terminal's width."""
    return "".join(text.split())


def test_sentences_are_wrapped_and_examples_are_not(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit):
        main(["evaluate", "--help"])
    lines = capsys.readouterr().out.splitlines()
    assert all(len(line) <= 80 for line in lines if line[:1] != " ")
    assert "  cloudmatrix evaluate --model DIR-int8 --reference DIR --text held-out.jsonl --json report.json" in lines


def test_every_module_with_the_shape_of_a_command_is_one() -> None:
    modules = (
        importlib.import_module(f"serving.cli.{found.name}")
        for found in pkgutil.iter_modules(serving.cli.__path__)
        if found.name != "__main__"
    )
    found = {one.__name__.rpartition(".")[2].replace("_", "-") for one in modules if hasattr(one, "add_arguments")}
    assert found == set(COMMANDS)


def test_only_the_chosen_command_has_its_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    found = command_parser("scale").parse_args(["scale", "decode", "3"])
    assert (found.pool, found.replicas) == ("decode", 3)
    with pytest.raises(SystemExit):
        command_parser("scale").parse_args(["status", "--json"])
    assert "--json" in capsys.readouterr().err


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"cloudmatrix {VERSION}\n"


@pytest.mark.parametrize("words", [[], ["serv"], ["--nothing"]])
def test_no_such_command(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    assert "COMMAND" in capsys.readouterr().err
