"""Programs that run the exchange's headers, compiled once per version of their sources and cached for later runs."""

import hashlib
import os
import subprocess
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest

from serving.model.native import build

HERE = Path(__file__).parent / "native"
HEADERS = Path(__file__).parents[3] / "hardware" / "ub" / "native"
SANITIZERS = {
    "plain": (),
    "address": ("-O1", "-g1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"),
    "thread": ("-O1", "-g1", "-fsanitize=thread"),
}


def program(name: str, folder: Path, sanitizer: str = "plain", flags: Sequence[str] = ()) -> Path:
    """The compiled program; skips the test if it cannot be compiled, or such a program cannot be run.

    Continuous integration must have a compiler; whether a sanitizer runs depends on the machine's kernel, too.
    """
    flags = (*SANITIZERS[sanitizer], *flags)
    try:
        compiler = build.find_compiler()
    except build.BuildError as error:
        if os.environ.get("CI"):
            pytest.fail(f"continuous integration needs a C++ compiler: {error}")
        pytest.skip(str(error))
    if sanitizer != "plain" and not _runs(compiler, flags):
        pytest.skip(f"programs with -fsanitize={sanitizer} do not run here")
    digest = hashlib.blake2b(repr((compiler, flags)).encode(), digest_size=8)
    for source in sorted((*HEADERS.glob("*.h"), *HERE.glob("*"))):
        digest.update(source.name.encode() + source.read_bytes())
    made = folder / f"{name}-{digest.hexdigest()}"
    with build.lock(folder / f"{name}-{sanitizer}.lock"):
        if not made.exists():
            where = ("-iquote", str(HEADERS), "-iquote", str(HERE), "-Wall", "-Wextra", "-Werror")
            build.build(made, compiler, [HERE / f"{name}.cpp"], (*where, *flags), {})
            build.forget_old(made, f"{name}-*[0-9a-f]", kept=8)  # not the locks
    return made


def run(command: list[object]) -> str:
    """Output of a program; asserts success."""
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout


@cache
def _runs(compiler: tuple[str, ...], flags: tuple[str, ...]) -> bool:
    with tempfile.TemporaryDirectory() as folder:
        source, made = Path(folder) / "probe.cpp", Path(folder) / "probe"
        source.write_text("int main() {}\n", encoding="utf-8")
        done = subprocess.run([*compiler, *flags, source, "-o", made], capture_output=True, timeout=60)
        return done.returncode == 0 and subprocess.run([made], capture_output=True, timeout=60).returncode == 0
