"""The library under the address and undefined-behaviour sanitizers, and what its linker must not mix up."""

import hashlib
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from serving.model.native import build

HERE = Path(__file__).parent
SANITIZE = ("-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-DCM_SOFT_TILES")
INSTRUCTIONS = {**build.INSTRUCTIONS, "isa_amx": build.INSTRUCTIONS["isa_avx512"]}

# Compiling takes longer than all other tests of this folder; the result is kept for the next run.
pytestmark = pytest.mark.timeout(900)


@pytest.fixture
def folder(pytestconfig: pytest.Config) -> Path:
    if not any(shutil.which(name) for name in ("c++", "g++", "clang++")):
        pytest.skip("there is no C++ compiler here")
    return pytestconfig.cache.mkdir("native-sanitized")


def built(folder: Path, name: str) -> Path:
    """A self-test, linked with the library's sources, all of it sanitized."""
    source = HERE / f"{name}.cpp"
    digest = build.source_fingerprint() + f"-{hash_of(source)}"
    program = folder / f"{name}-{digest}"
    if not program.exists():
        sources = [*build.library_sources(), source]
        flags = (*SANITIZE, "-iquote", str(build.SOURCES))
        build.build(program, build.find_compiler(), sources, flags, INSTRUCTIONS)
    return program


def hash_of(path: Path) -> str:
    return hashlib.blake2b(path.read_bytes(), digest_size=8).hexdigest()


@pytest.mark.parametrize("name", [path.stem for path in sorted(HERE.glob("*selftest.cpp"))])
def test_sanitizers_find_nothing(folder: Path, name: str) -> None:
    done = subprocess.run([built(folder, name)], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]


@pytest.mark.parametrize("name", ["isa_portable", "isa_avx2", "isa_avx512"])
def test_nothing_of_an_instruction_set_can_be_taken_for_anothers(folder: Path, name: str) -> None:
    """A linker keeps one copy of an inline function: none may exist outside of its instruction set's own namespace."""
    if shutil.which("nm") is None:
        pytest.skip("there is no nm here")
    flags = [*build._FLAGS, *build.INSTRUCTIONS.get(name, ())]
    with tempfile.TemporaryDirectory() as scratch:
        part = Path(scratch) / "part.o"
        source = build.SOURCES / f"{name}.cpp"
        subprocess.run([*build.find_compiler(), *flags, "-c", source, "-o", part], check=True, timeout=600)
        symbols = subprocess.run(["nm", "-C", part], capture_output=True, text=True, check=True).stdout.splitlines()
    namespace = f"cm::{name.removeprefix('isa_')}::"
    weak = [symbol for symbol in symbols if symbol[17:18] in "WVu"]
    assert weak
    assert [symbol for symbol in weak if namespace not in symbol] == []
