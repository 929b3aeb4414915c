"""The library under the address and undefined-behaviour sanitizers, and symbols that its linker must not mix up."""

import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from serving.model.native import build
from tests.model.native.kernels import instruction_sets

HERE = Path(__file__).parent
# Not optimized: to compile that takes less than half the time, the programs run for seconds, and no check is left out.
SANITIZE = (
    *("-O0", "-g1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"),
    *("-DCM_SOFT_TILES", "-DCM_PIECE=32"),
)
# Only the instruction sets that the self-tests can run, AMX with soft tiles. A source without its flags is almost
# empty.
RUN_HERE = {"isa_avx2": "avx2", "isa_avx512": "avx512", "isa_amx": "soft_tiles"}
INSTRUCTIONS = {
    source: build.INSTRUCTIONS["isa_avx512" if name == "soft_tiles" else source]
    for source, name in RUN_HERE.items()
    if name in instruction_sets()
}

# Compiling takes longer than all other tests of this folder; the result is kept for the next run.
pytestmark = pytest.mark.timeout(900)


@pytest.fixture
def folder(pytestconfig: pytest.Config) -> Path:
    if not any(shutil.which(name) for name in ("c++", "g++", "clang++")):
        pytest.skip("there is no C++ compiler here")
    return pytestconfig.cache.mkdir("native-sanitized")


@pytest.fixture
def parts(folder: Path) -> list[Path]:
    """The library's sources, sanitized; compiled once for both self-tests, which takes minutes."""
    made = folder / "-".join(("parts", build.source_fingerprint(), *INSTRUCTIONS))
    with build.lock(folder / "parts.lock"):
        if not made.exists():
            with tempfile.TemporaryDirectory(dir=folder) as scratch:
                compile_parts(Path(scratch), build.library_sources())
                shutil.copytree(scratch, made)
    return sorted(made.glob("*.o"))


def compile_parts(folder: Path, sources: list[Path]) -> list[Path]:
    flags = (*SANITIZE, "-iquote", str(build.SOURCES))
    return build.compile_parts(folder, build.find_compiler(), sources, flags, INSTRUCTIONS, folder / "log")


@pytest.mark.nightly("tests/model/native/test_products.py::test_products_in_floating_point")
@pytest.mark.parametrize("name", [path.stem for path in sorted(HERE.glob("*selftest.cpp"))])
def test_sanitizers_find_nothing(parts: list[Path], tmp_path: Path, name: str) -> None:
    program, compiler = tmp_path / name, build.find_compiler()
    build.link(
        program, compiler, [*parts, *compile_parts(tmp_path, [HERE / f"{name}.cpp"])], SANITIZE, tmp_path / "log"
    )
    done = subprocess.run([program], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]


@pytest.mark.nightly("tests/model/native/test_products.py::test_products_in_floating_point")
@pytest.mark.parametrize("name", ["isa_portable", "isa_avx2", "isa_avx512", "isa_amx"])
def test_nothing_of_an_instruction_set_can_be_taken_for_anothers(folder: Path, name: str) -> None:
    """A linker keeps one copy of an inline function: none may exist outside of its instruction set's own namespace."""
    if shutil.which("nm") is None:
        pytest.skip("there is no nm here")
    # -O1 inlines less than the library's own -O3: a stricter check, in half the time.
    flags = [*build._FLAGS, "-O1", *build.INSTRUCTIONS.get(name, ())]
    with tempfile.TemporaryDirectory() as scratch:
        part = Path(scratch) / "part.o"
        source = build.SOURCES / f"{name}.cpp"
        subprocess.run([*build.find_compiler(), *flags, "-c", source, "-o", part], check=True, timeout=600)
        symbols = subprocess.run(["nm", "-C", part], capture_output=True, text=True, check=True).stdout.splitlines()
    namespace = f"cm::{name.removeprefix('isa_')}::"
    weak = [symbol for symbol in symbols if symbol[17:18] in "WVu"]
    assert weak
    assert [symbol for symbol in weak if namespace not in symbol] == []
