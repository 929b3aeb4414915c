"""The Python that `make` uses: the requested one, else `python3`, else the latest on PATH that works."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TOOLS = ("awk", "bash", "cat", "cut", "dirname", "grep", "make", "sed", "sort", "uniq")

# This Python, posing as another one: it answers version queries, and creates environments without pip.
PRETENDER = """#!{real} -IS
import os, sys, sysconfig, types
sys.version_info = (3, {minor}, 1)
sys.executable = __file__
{oddity}
_, *asked = sys.argv
if asked == ["-V"]:
    print("Python 3.{minor}.1")
elif asked[:2] == ["-m", "venv"]:
    os.makedirs(asked[2] + "/bin")
    os.symlink(__file__, asked[2] + "/bin/python")
else:
    at = asked.index("-c")
    sys.argv = ["-c", *asked[at + 2 :]]
    exec(asked[at + 1])
"""
SHIM = '#!/bin/sh\necho "pyenv: ${0##*/}: command not found" >&2\nexit 127\n'


def python(path: Path, minor: int, oddity: str = "") -> Path:
    """Write an interpreter into the folder."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(PRETENDER.format(real=sys.executable, minor=minor, oddity=oddity))
    path.chmod(0o755)
    return path


def shim(path: Path) -> None:
    """Write pyenv's shim for a version that was not chosen."""
    path.write_text(SHIM)
    path.chmod(0o755)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The only folder on PATH, initially without Python."""
    path = tmp_path / "bin"
    path.mkdir()
    for tool in TOOLS:
        found = shutil.which(tool)
        assert found is not None, tool
        (path / tool).symlink_to(found)
    return path


def run(folder: Path, *command: str, also: Path | None = None) -> subprocess.CompletedProcess[str]:
    """A command with only these folders on its PATH, and without variables of the `make` that runs this test."""
    path = str(folder) if also is None else f"{folder}:{also}"
    return subprocess.run(command, cwd=ROOT, env={"PATH": path}, capture_output=True, text=True, check=False)


def listed(folder: Path, also: Path | None = None) -> list[str]:
    """Pythons that `make` chooses from."""
    answer = run(folder, "deploy/pythons.sh", also=also)
    assert answer.returncode == 0, answer.stderr
    return answer.stdout.splitlines()


def test_the_newest_comes_first(folder: Path) -> None:
    oldest, newest, middle = (python(folder / f"python3.{minor}", minor) for minor in (11, 14, 12))
    assert listed(folder) == [str(newest), str(middle), str(oldest)]


def test_the_active_one_comes_before_newer_ones(folder: Path, tmp_path: Path) -> None:
    newer = python(folder / "python3.14", 14)
    active = python(tmp_path / "env" / "python3", 12)
    first = run(active.parent, "deploy/pythons.sh", also=folder)
    assert first.stdout.splitlines() == [str(active), str(newer)]
    assert listed(folder, active.parent) == [str(active), str(newer)], "the only python3, though PATH names it last"


def test_an_active_one_that_will_not_do_is_passed_over(folder: Path) -> None:
    python(folder / "python3", 10)
    older, newer = (python(folder / f"python3.{minor}", minor) for minor in (11, 13))
    assert listed(folder) == [str(newer), str(older)]


def test_of_one_version_the_first_on_path_that_works_is_taken(folder: Path, tmp_path: Path) -> None:
    first = python(folder / "python3.13", 13)
    second = python(tmp_path / "usr" / "python3.13", 13)
    assert listed(folder, second.parent) == [str(first)]
    for minor in (11, 12, 14):
        shim(folder / f"python3.{minor}")
    real = python(tmp_path / "usr" / "python3.12", 12)
    assert listed(folder, real.parent) == [str(first), str(real)]


@pytest.mark.parametrize(
    ("minor", "oddity", "reason"),
    [
        (10, "", "Python 3.10, but 3.11 to 3.14 will do"),
        (15, "", "Python 3.15, but 3.11 to 3.14 will do"),
        (13, "sys.modules['ensurepip'] = None", "Debian has it in python3.13-venv"),
        (13, "sys.modules['venv'] = None", "Debian has it in python3.13-venv"),
        (12, "sys.implementation = types.SimpleNamespace(name='pypy')", "no wheels for"),
        (14, "sysconfig.get_config_vars()['Py_GIL_DISABLED'] = 1", "no wheels for"),
        (14, "sys.exit(1)", "cannot be used"),
    ],
)
def test_what_cannot_run_the_project_is_passed_over_and_refused(
    folder: Path, tmp_path: Path, minor: int, oddity: str, reason: str
) -> None:
    odd = python(folder / "python3", minor, oddity)
    works = python(folder / "python3.11", 11)
    assert listed(folder) == [str(works)]
    answer = run(folder, "deploy/pythons.sh", str(odd))
    assert (answer.returncode, answer.stdout) == (1, "")
    assert answer.stderr.startswith(f"{odd} cannot be used: ")
    assert reason in answer.stderr


def test_without_any_it_is_said_what_to_install(folder: Path) -> None:
    shim(folder / "python3.13")
    answer = run(folder, "deploy/pythons.sh")
    assert (answer.returncode, answer.stdout) == (1, "")
    assert "no Python 3.11 to 3.14 with venv is on PATH: on Debian, install python3 and python3-venv" in answer.stderr


def test_make_takes_the_newest(folder: Path, tmp_path: Path) -> None:
    python(folder / "python3.11", 11)
    newest = python(folder / "python3.14", 14)
    answer = run(folder, "make", f"VENV={tmp_path}/env", f"{tmp_path}/env/bin/python")
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout == f"{tmp_path}/env: Python 3.14.1, {newest}\n"
    assert (tmp_path / "env" / "bin" / "python").readlink() == newest


def test_make_takes_the_one_that_it_is_told(folder: Path, tmp_path: Path) -> None:
    told = python(folder / "python3.11", 11)
    python(folder / "python3.14", 14)
    environment = f"VENV={tmp_path}/env"
    assert run(folder, "make", environment, "PYTHON=python3.11", "asked-for").returncode == 0
    assert (tmp_path / "env" / "bin" / "python").readlink() == told
    assert run(folder, "make", environment, f"PYTHON={told}", "asked-for").returncode == 0
    assert run(folder, "make", environment, "asked-for").returncode == 0
    other = run(folder, "make", environment, "PYTHON=python3.14", "asked-for")
    assert other.returncode == 2
    assert f"{tmp_path}/env is of Python 3.11, not of python3.14: make clean, then repeat" in other.stderr


def test_make_takes_the_active_one(folder: Path, tmp_path: Path) -> None:
    python(folder / "python3.14", 14)
    active = python(folder / "python3", 12)
    answer = run(folder, "make", f"VENV={tmp_path}/env", f"{tmp_path}/env/bin/python")
    assert (answer.returncode, answer.stdout) == (0, f"{tmp_path}/env: Python 3.12.1, {active}\n")


def test_make_says_how_to_call_what_it_installs(folder: Path) -> None:
    (folder / "expand").symlink_to(shutil.which("expand") or "")
    said = run(folder, "make").stdout
    assert "Commands are .venv/bin/cloudmatrix and .venv/bin/loadgen" in said
    assert "source .venv/bin/activate" in said


def test_make_tells_why_the_one_that_it_is_told_will_not_do(folder: Path, tmp_path: Path) -> None:
    shim(folder / "python3.13")
    python(folder / "python3.11", 11)
    answer = run(folder, "make", f"VENV={tmp_path}/env", "PYTHON=python3.13", f"{tmp_path}/env/bin/python")
    assert answer.returncode == 2
    assert "python3.13 cannot be used: pyenv: python3.13: command not found" in answer.stderr
    assert not (tmp_path / "env").exists()


def test_all_places_name_the_same_versions() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    bounds = re.fullmatch(r">=3\.(\d+),<3\.(\d+)", project["requires-python"])
    assert bounds is not None, "deploy/pythons.sh reads it in this form"
    minors = range(int(bounds[1]), int(bounds[2]))
    kind = "Programming Language :: Python :: 3."
    assert [name for name in project["classifiers"] if name.startswith(kind)] == [f"{kind}{minor}" for minor in minors]
    assert f"Linux, Python 3.{minors[0]} to 3.{minors[-1]}" in (ROOT / "README.md").read_text()
    assert os.access(ROOT / "deploy" / "pythons.sh", os.X_OK)
    tested = re.search(r"python: \[(.*)\]", (ROOT / ".github" / "workflows" / "nightly.yml").read_text())
    assert tested is not None
    assert tested[1].split(", ") == [f'"3.{minor}"' for minor in minors], "the quick tests run on all of them"
