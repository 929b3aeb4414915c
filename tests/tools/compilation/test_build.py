"""Compiled modules, refusals of a build, and the messages if it is impossible."""

import ast
import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from serving import compiled
from serving.compiled import ROOT, SUFFIX, build_name, fingerprint
from serving.errors import ConfigError
from serving.model.native.build import BuildError, forget_old
from serving.tools.compilation import build
from serving.tools.compilation import build as builder
from serving.tools.compilation.modules import COMPILED


def test_modules_fingerprints_and_old_builds(tmp_path: Path) -> None:
    assert list(COMPILED) == sorted(set(COMPILED))
    for name in COMPILED:
        tree = ast.parse((ROOT / f"{name.replace('.', '/')}.py").read_text(encoding="utf-8"))
        bases = {ast.unparse(base) for node in ast.walk(tree) if isinstance(node, ast.ClassDef) for base in node.bases}
        assert bases.isdisjoint({"Struct", "msgspec.Struct"}), name

    for package in compiled.PACKAGES:
        (tmp_path / package).mkdir()
    seen = {fingerprint(tmp_path)}
    for name, text in (("serving/a.py", "1"), ("serving/a.py", "2"), ("hardware/a.py", "2"), ("serving/b.py", "")):
        (tmp_path / name).write_text(text)
        seen.add(fingerprint(tmp_path))
    assert len(seen) == 5
    (tmp_path / "serving" / "notes.txt").write_text("not a source")
    assert fingerprint(tmp_path) in seen

    for number in range(6):
        (tmp_path / f"modules-{number}{SUFFIX}").mkdir()
    forget_old(tmp_path / f"modules-5{SUFFIX}", f"modules-*{SUFFIX}", 4)
    assert (tmp_path / f"modules-5{SUFFIX}").is_dir()
    assert sum(1 for _ in tmp_path.glob("modules-*")) == 4


def test_a_build_of_other_sources_is_refused(tmp_path: Path) -> None:
    other = tmp_path / f"modules-0123456789abcdef{SUFFIX}"
    other.mkdir()
    with pytest.raises(ImportError, match="cloudmatrix compile"):
        compiled.use(other)
    with pytest.raises(ImportError, match="is no build of these sources"):
        compiled.use(tmp_path / build_name())
    assert compiled.in_use() is None


def test_it_is_too_late_once_a_source_has_been_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / build_name()
    (folder / "serving" / "gateway" / "core").mkdir(parents=True)
    (folder / "serving" / "gateway" / "core" / f"router{SUFFIX}").touch()
    assert "serving.gateway.core.router" in sys.modules
    assert not compiled.use(folder)
    assert compiled.in_use() is None
    monkeypatch.setattr(build, "current", lambda: folder)
    assert not build.prefer_compiled()


def test_without_a_cache_folder_the_sources_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere() -> Path:
        raise BuildError("neither here nor there can be written")

    monkeypatch.setattr(builder, "writable_folder", nowhere)
    assert not build.prefer_compiled()
    with pytest.raises(ConfigError, match="neither here nor there"):
        builder.build(lambda done, of: None)


def test_a_missing_tool_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "mypyc" else find(name))
    with pytest.raises(ConfigError, match=r"mypyc is not installed: pip install 'mypy\[mypyc\]"):
        builder.build(lambda done, of: None, tmp_path / "result")


def test_what_the_tools_said_is_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    compiler = tmp_path / "compiler"
    compiler.write_text("#!/bin/sh\necho 'x.c:1:10: fatal error: Python.h: No such file or directory' >&2\nexit 1\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("CC", str(compiler))
    with pytest.raises(ConfigError, match=r"cannot be compiled: x.c:1:10: fatal error: Python.h: No such") as failed:
        builder.build(lambda done, of: None, tmp_path / "result", modules=("serving.ids",))
    log = tmp_path / "result.log"
    assert str(log) in str(failed.value)
    assert f"{compiler} -" in log.read_text()
    assert not (tmp_path / "result").exists()


def test_a_build_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="longer than 0 s"):
        builder.build(lambda done, of: None, tmp_path / "result", limit_s=0.2)
    assert {path.name for path in tmp_path.iterdir()} == {"result.lock", "result.log"}


SMALL = ("serving.gateway.core.router", "serving.kvpool.core.free_runs")
USE = """
import random, sys
from pathlib import Path
from serving import compiled
folder = sys.argv[1:] and compiled.use(Path(sys.argv[1]))
from serving.gateway.core import router as counter_draw
from serving.kvpool.core import free_runs
print(counter_draw.__file__.rpartition(".")[2], free_runs.__file__.rpartition(".")[2])
print([counter_draw.two_of(9, seed, 3) for seed in range(2**40, 2**40 + 400)])
runs, rng, taken = free_runs.FreeRuns(500), random.Random(1), []
for _ in range(2000):
    if taken and rng.random() < 0.5:
        runs.give(*taken.pop(rng.randrange(len(taken))))
    elif (start := runs.take(length := rng.randint(1, 40))) is not None:
        taken.append((start, length))
    print(runs.longest, runs.free_slabs, sorted(runs.free_set())[:9])
"""


def test_compiled_modules_compute_what_their_sources_do(tmp_path: Path) -> None:
    """Two small ones; the whole simulator is compared nightly (test_results_stay.py)."""
    folder = tmp_path / build_name()
    told: list[tuple[int, int]] = []
    assert builder.build(lambda done, of: told.append((done, of)), folder, optimize=0, modules=SMALL) == folder
    assert told[0] == (0, 0)
    outputs = [
        subprocess.run([sys.executable, "-c", USE, *where], capture_output=True, text=True, check=True).stdout
        for where in ([str(folder)], [])
    ]
    (compiled_kind, compiled_results), (source_kind, results) = (text.split("\n", 1) for text in outputs)
    assert (compiled_kind, source_kind) == ("so so", "py py")
    assert compiled_results == results
    assert len(results) > 10_000
