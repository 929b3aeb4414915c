"""Compiling the native library: once per machine, by the first process, and a clear line if it is impossible."""

import logging
import os
import shlex
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from serving.errors import ModelError
from serving.model.native import build, library
from serving.model.native.build import BuildError

# A library that compiles in a moment.
SOURCE = 'extern "C" __attribute__((visibility("default"))) int answer() { return 42; }\n'


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    folder = tmp_path / "sources"
    folder.mkdir()
    (folder / "answer.cpp").write_text(SOURCE)
    return folder


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder in place of the user's."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    return folder


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture(autouse=True)
def compiler_is_there() -> None:
    if not any(shutil.which(name) for name in ("c++", "g++", "clang++")):
        pytest.skip("there is no C++ compiler here")


def test_it_is_built_once_and_anew_for_other_sources(sources: Path, cache: Path, said: list[str]) -> None:
    first = build.cached_library(said.append, sources)
    assert first.parent == cache / "cloudmatrix-infer"
    assert len(said) == 1
    made = first.stat().st_ino
    assert build.cached_library(said.append, sources) == first
    assert (len(said), first.stat().st_ino) == (1, made)
    assert [path.name for path in first.parent.iterdir() if path.name.startswith("build-")] == []
    os.utime(first, (1e9, 1e9))
    build.cached_library(said.append, sources)
    assert first.stat().st_mtime > 1e9 + 1, "one in use counts as new"
    (sources / "more.h").write_text("// a header counts too\n")
    assert build.cached_library(said.append, sources) != first
    assert len(said) == 2


def test_libraries_that_nobody_used_for_long_go(sources: Path, cache: Path, said: list[str]) -> None:
    folder = build.writable_folder()
    for age in range(20):
        old = folder / f"cm_native-{age:02}.so"
        old.touch()
        old.with_name(f"{old.name}.lock").touch()
        os.utime(old, (1e9 - age, 1e9 - age))
    (folder / "modules-of-somebody-else.so").mkdir()
    first = build.cached_library(said.append, sources)
    others = [f"cm_native-{age:02}.so" for age in range(7)]
    kept = sorted([first.name, "modules-of-somebody-else.so", *others])
    assert sorted(path.name for path in folder.iterdir()) == sorted([*kept, *(f"{name}.lock" for name in kept[:8])])


def test_another_compiler_makes_another_library(
    sources: Path, cache: Path, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = build.cached_library(said.append, sources)
    monkeypatch.setenv("CXX", f"{build.find_compiler()[0]} -DANYTHING")
    assert build.cached_library(said.append, sources) != first


def test_compilers_that_are_not_there_or_cannot_be_run(
    monkeypatch: pytest.MonkeyPatch, sources: Path, cache: Path, tmp_path: Path
) -> None:
    monkeypatch.setenv("CXX", "env g++ -pipe")
    assert build.find_compiler() == ("env", "g++", "-pipe")
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(BuildError, match="no-such-compiler, does not exist"):
        build.find_compiler()
    broken = sources / "compiler"
    broken.write_bytes(b"\x7fELF nothing behind it")
    broken.chmod(0o755)
    monkeypatch.setenv("CXX", str(broken))
    with pytest.raises(BuildError, match="could not be run"):
        build.cached_library(lambda _: None, sources)
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BuildError, match="there is no C\\+\\+ compiler"):
        build.find_compiler()


def test_a_broken_source_leaves_a_log_and_no_library(sources: Path, cache: Path) -> None:
    (sources / "answer.cpp").write_text("int answer() { return forty_two; }\n")
    with pytest.raises(BuildError, match=r"error: .*forty_two.* \(full output: (.*)\)") as failure:
        build.cached_library(lambda _: None, sources)
    assert "\n" not in str(failure.value)
    (log,) = (cache / "cloudmatrix-infer").glob("*.log")
    assert "forty_two" in log.read_text()
    assert str(log) in str(failure.value)
    assert list(log.parent.glob("*.so")) == []
    (sources / "answer.cpp").write_text(SOURCE)
    (sources / "twice.cpp").write_text(SOURCE)
    with pytest.raises(BuildError, match="failed"):
        build.cached_library(lambda _: None, sources)


def test_a_cache_that_cannot_be_written_gives_way(
    sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocked = tmp_path / "a file"
    blocked.write_text("")
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("XDG_CACHE_HOME", str(blocked))
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    found = build.cached_library(lambda _: None, sources)
    assert found.parent == temporary / f"cloudmatrix-infer-{os.getuid()}"
    assert stat.S_IMODE(found.parent.stat().st_mode) == 0o700
    temporary.joinpath("x").write_text("")
    monkeypatch.setattr("tempfile.tempdir", str(temporary / "x"))
    with pytest.raises(BuildError, match="can be written"):
        build.cached_library(lambda _: None, sources)


BUILDER = """
import sys
from pathlib import Path
from serving.model.native import build
print(build.cached_library(lambda _: print("built"), Path(sys.argv[1])))
"""


def test_two_processes_build_it_once(sources: Path, cache: Path) -> None:
    command = [sys.executable, "-c", BUILDER, str(sources)]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    output = [process.communicate()[0].split("\n") for process in both]
    assert sorted(len(lines) for lines in output) == [2, 3]  # one of them built
    assert output[0][-2] == output[1][-2]
    assert Path(output[0][-2]).exists()


def test_a_compiler_without_an_instruction_set_leaves_it_out(
    tmp_path: Path, sources: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The flags of such a source file are omitted; its contents then decide."""
    real = shlex.join(build.find_compiler())
    old = tmp_path / "old-compiler"
    old.write_text(f'#!/bin/sh\ncase "$*" in *mavx512*) echo "error: unknown" >&2; exit 1;; esac\nexec {real} "$@"\n')
    old.chmod(0o755)
    (sources / "isa_avx512.cpp").write_text('extern "C" int with_flags() { return __AVX512F__ + 0; }\n')
    with pytest.raises(BuildError, match="AVX512F"):
        build.build(tmp_path / "x.so", [str(old)], build.library_sources(sources))
    (sources / "isa_avx512.cpp").write_text("#ifdef __AVX512F__\n#error flags\n#endif\n")
    build.build(tmp_path / "x.so", [str(old)], build.library_sources(sources))


@pytest.fixture
def fresh_load() -> Iterator[None]:
    """`load` decides again, during the test and after it."""
    library.load.cache_clear()
    yield
    library.load.cache_clear()


@pytest.mark.usefixtures("fresh_load")
def test_without_a_library_the_log_says_why_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def none_there(_announce: object) -> Path:
        raise BuildError("there is no C++ compiler")

    monkeypatch.setattr(library, "cached_library", none_there)
    with caplog.at_level(logging.WARNING):
        assert (library.load(), library.instructions()) == (None, None)
    assert caplog.text.count("there is no C++ compiler") == 1


def test_a_strange_library_is_refused(sources: Path, cache: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="cannot be loaded"):
        library.Library(build.cached_library(lambda _: None, sources))
    with pytest.raises(ModelError, match="cannot be loaded"):
        library.Library(tmp_path / "absent.so")
