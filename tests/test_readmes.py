"""The READMEs are true as far as a program can check: links lead to files, commands and flags exist, examples run."""

import argparse
import doctest
import importlib
import io
import itertools
import re
import runpy
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from loadgen.cli.main import COMMANDS
from serving.cli import command_parser
from tests.pages import PAGES, ROOT

BENCHMARKS = ROOT / "tests" / "benchmarks"
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_FENCE = re.compile(r"^```[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
_PATH = re.compile(r"`((?:serving|hardware|loadgen|deploy|tests|examples|docs|\.github|\.ci)/[\w./-]*)`")
_HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
_BENCHMARK = re.compile(r"python -m (tests\.benchmarks\.[\w.]+)((?: +--[\w-]+(?: +[\w./]+)?)*)")


def _names() -> list[str]:
    return [str(readme.relative_to(ROOT)) for readme in PAGES]


def _lines(readme: Path) -> Iterator[str]:
    """Lines of its code blocks, continued ones joined, prompts removed, comments kept."""
    for block in _FENCE.findall(readme.read_text(encoding="utf-8")):
        for line in block.replace("\\\n", " ").splitlines():
            yield line.strip().removeprefix("$ ").removeprefix(".venv/bin/")


def _commands(program: str) -> list[str]:
    starts = f"{program} "
    written = [page for page in PAGES if "reference" not in page.parts]  # those are made of the commands themselves
    return sorted({line for readme in written for line in _lines(readme) if line.startswith(starts)})


def _words(line: str) -> list[str]:
    """Arguments of a command, without the shell's redirections."""
    words = [re.sub(r"\$\w+", "1", word) for word in shlex.split(line, comments=True)[1:]]
    return list(itertools.takewhile(lambda word: word not in ("|", "||", "&", "&&", ">", "2>", "2>&1"), words))


@pytest.mark.parametrize("name", _names())
def test_links_lead_somewhere(name: str) -> None:
    readme = ROOT / name
    for target in _LINK.findall(readme.read_text(encoding="utf-8")):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        where = (readme.parent / path).resolve() if path else readme
        assert where.is_file(), f"{name} points at {target}, which is no file: the site of `make docs` shows no folders"
        if anchor:
            headings = (_anchor(heading) for heading in _HEADING.findall(where.read_text(encoding="utf-8")))
            assert anchor in headings, f"{name} points at {target}"


@pytest.mark.parametrize("name", _names())
def test_paths_that_are_named_are_there(name: str) -> None:
    named = _PATH.findall((ROOT / name).read_text(encoding="utf-8"))
    assert [path for path in named if not (ROOT / path).exists()] == []


def _anchor(heading: str) -> str:
    """GitHub's anchor of a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


@pytest.mark.parametrize("line", _commands("cloudmatrix"))
def test_cloudmatrix_has_these_commands_and_flags(line: str) -> None:
    assert callable(command_parser().parse_args(_words(line)).run)


@pytest.mark.parametrize("line", _commands("loadgen"))
def test_loadgen_has_these_commands_and_flags(line: str) -> None:
    name, *words = _words(line)
    assert name in COMMANDS
    parser = argparse.ArgumentParser(allow_abbrev=False)
    importlib.import_module(f"loadgen.cli.{name}_command").add_flags(parser)
    parser.parse_args(words)


@pytest.mark.parametrize("name", _names())
def test_benchmarks_that_are_named_are_there(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    for script in re.findall(r"\bbench_\w+", text):
        assert (BENCHMARKS / f"{script}.py").exists(), f"{name} names {script}"
    sources = "".join(source.read_text(encoding="utf-8") for source in BENCHMARKS.rglob("*.py"))
    for module, flags in _BENCHMARK.findall(text):
        assert (ROOT / (module.replace(".", "/") + ".py")).exists(), f"{name} names {module}"
        for flag in re.findall(r"--[\w-]+", flags):
            assert f'"{flag}"' in sources, f"{module} has no {flag}"


def test_the_example_of_the_virtual_hardware_runs() -> None:
    outcome = doctest.testfile(str(ROOT / "hardware" / "README.md"), module_relative=False)
    assert outcome.attempted > 0
    assert outcome.failed == 0


@pytest.mark.parametrize("name", ["chat", "kill", "turns"])
def test_an_example_without_a_server_says_how_to_get_one(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [name, "http://127.0.0.1:1"])
    monkeypatch.setattr(sys, "stdin", io.StringIO("Hello\n"))
    with pytest.raises(SystemExit, match="refused: run `make serve`, or give the server's address"):
        runpy.run_path(str(ROOT / "examples" / f"{name}.py"), run_name="__main__")
