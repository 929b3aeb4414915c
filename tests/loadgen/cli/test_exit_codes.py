"""Exit codes of both programs: each code of the table is returned by some command, and code uses only their names."""

import ast
import io
import sys
from pathlib import Path
from typing import NoReturn

import pytest

from loadgen.cli.main import main as loadgen
from loadgen.exit_codes import MEANINGS, ExitCode
from serving.cli import main as cloudmatrix
from serving.gateway.core.settings import GatewaySettings
from serving.values.decision_log import SUFFIX, LogEncoder
from tests.architecture.source_tree import read_sources
from tests.loadgen.cli.conftest import Run

NOBODY = "http://127.0.0.1:9"


class Unread(io.TextIOWrapper):
    """Standard output whose reader has gone."""

    def write(self, _: str) -> NoReturn:
        raise BrokenPipeError


class Interrupting(io.StringIO):
    """Standard input at which the user presses Ctrl-C."""

    def read(self, _: int | None = -1) -> NoReturn:
        raise KeyboardInterrupt


def test_each_code_of_the_table_is_returned(loadgen_run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("file").touch()
    Path(f"broken{SUFFIX}").write_bytes(b"nothing")
    Path(f"cut{SUFFIX}").write_bytes(LogEncoder().begin(GatewaySettings("g", ("prefill", "decode"), 1.0, 16)))
    failing = ("--num-prompts", "3", "--request-timeout", "0.01s")
    returned = {
        ExitCode.OK: [cloudmatrix(["completion", "bash"]), loadgen(["completion", "bash"])],
        ExitCode.FAILURE: [cloudmatrix(["replay", f"broken{SUFFIX}"])],
        ExitCode.USAGE: [cloudmatrix(["replay", "none"]), loadgen(["report", "none"])],
        ExitCode.SERVER: [cloudmatrix(["status", "--url", NOBODY]), loadgen_run(url=NOBODY)],
        ExitCode.OUTPUT: [cloudmatrix(["demo", "--out", "file/demo"]), loadgen_run("--out", "file/run")],
        ExitCode.REQUESTS: [loadgen_run(*failing)],
        ExitCode.INCOMPLETE: [cloudmatrix(["replay", f"cut{SUFFIX}"])],
    }
    assert loadgen_run(*failing, "--max-failure-share", "100%") == ExitCode.OK
    monkeypatch.setattr(sys, "stdin", Interrupting())
    returned[ExitCode.INTERRUPTED] = [cloudmatrix(["chat", "--url", NOBODY])]
    with Path("out").open("wb") as raw, Unread(raw) as unread:
        monkeypatch.setattr(sys, "stdout", unread)
        returned[ExitCode.UNREAD] = [cloudmatrix(["completion", "bash"])]
        monkeypatch.undo()
    assert returned == {code: [code] * len(returned[code]) for code in MEANINGS}
    assert set(MEANINGS) == set(ExitCode)


def test_both_programs_say_the_same_where_nothing_listens(loadgen_run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    cloudmatrix(["status", "--url", NOBODY])
    loadgen_run(url=NOBODY)
    one, other = capsys.readouterr().err.splitlines()
    assert one.removeprefix("cloudmatrix: ") == other.removeprefix("loadgen: ")
    assert one.startswith(f"cloudmatrix: nothing listens at {NOBODY}: start a server there (`cloudmatrix serve`)")


def literal_exits(text: str) -> list[int]:
    """Lines with a number above 0 as an exit code: returned by a function that says so, or given to `SystemExit`."""

    def is_number(value: ast.expr | None) -> bool:
        choices = [value.body, value.orelse] if isinstance(value, ast.IfExp) else [value]
        return any(isinstance(one, ast.Constant) and type(one.value) is int and one.value > 0 for one in choices)

    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("SystemExit", "sys.exit"):
            found += [node.lineno for value in node.args[:1] if is_number(value)]
        elif isinstance(node, ast.FunctionDef):
            says_so = node.name in ("run", "main") or "exit code" in (ast.get_docstring(node) or "").lower()
            ends = [one for one in ast.walk(node) if isinstance(one, ast.Return) and is_number(one.value)]
            found += [one.lineno for one in ends if says_so]
    return found


def test_commands_name_their_exit_codes() -> None:
    commands = [one for folder in ("serving/cli", "serving/launch", "loadgen/cli") for one in read_sources(folder)]
    inner = "serving/launch/worker_seed.py"  # of Ray's workers
    assert {one.path: lines for one in commands if (lines := literal_exits(one.text)) and one.path != inner} == {}
    assert literal_exits("def run():\n    return 0 if fine else 3") == [2]
    assert literal_exits('def f():\n    "The exit code."\n    return 3\nsys.exit(0)\nsys.exit(2)') == [3, 5]
