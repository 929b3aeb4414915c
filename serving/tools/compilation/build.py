"""Sources in, a folder of compiled modules out.

Theory of operation. mypyc needs all modules at once, in the folder layout of their packages, and leaves temporary
files: it works on a copy of the sources, in a process of its own (worker.py). The result is moved into the user's cache
atomically, under a name with a fingerprint of the sources, so existing builds are never overwritten.
"""

import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from serving import compiled
from serving.compiled import PACKAGES, ROOT, SUFFIX, build_name
from serving.errors import ConfigError
from serving.model.native.build import BuildError, forget_old, lock, writable_folder
from serving.tools.compilation.modules import COMPILED

Progress = Callable[[int, int], None]
"""Called with the number of compiled files and the total; 0 while types are checked."""

_WORKER = Path(__file__).with_name("worker.py")
LIMIT_S = 1800.0
_POLL_S = 0.5
_REASON_WIDTH = 160
"""Characters; a failed command is shown with all its flags."""
_KEPT = 4
"""Builds that stay in the cache: of checkouts that are used side by side."""


def current() -> Path:
    """Where the build of these sources for this interpreter is, or would be: in the wheel, or in the user's cache.

    Raises: ConfigError if no folder can be written.
    """
    if (packaged := ROOT / "serving" / build_name()).is_dir():
        return packaged
    try:
        return writable_folder() / build_name()
    except BuildError as error:
        raise ConfigError(str(error)) from error


def build(
    progress: Progress,
    result: Path | None = None,
    *,
    optimize: int = 2,
    modules: Sequence[str] = COMPILED,
    limit_s: float = LIMIT_S,
) -> Path:
    """Compile, unless that has been done.

    Args:
        result: folder to be made, instead of `current`; it has the same name.
        optimize: level of the C compiler's effort, 0-3.
        modules: those to compile.
        limit_s: how long that may take.
    Returns: the build's folder.
    Raises: ConfigError if it cannot be done here; the tools' output is kept next to the folder as `*.log`.
    Effects: writes the user's cache folder.
    """
    result = result or current()
    if result.parent == ROOT / "serving":
        return result  # part of the wheel
    _check_tools()
    with lock(result.with_name(f"{result.name}.lock")):
        if not result.is_dir():
            with tempfile.TemporaryDirectory(dir=result.parent, prefix="compile-") as scratch:
                log = result.with_name(f"{result.name}.log")
                _compile(Path(scratch), log, progress, optimize, modules, limit_s)
                made = Path(scratch) / "made"
                _collect(Path(scratch), made)
                os.replace(made, result)
            forget_old(result, f"modules-*{SUFFIX}", _KEPT)
    return result


def _check_tools() -> None:
    """Raises: ConfigError if mypyc is missing. A missing C compiler is reported by the build itself."""
    for module in ("mypyc", "setuptools"):
        if importlib.util.find_spec(module) is None:
            raise ConfigError(f"{module} is not installed: pip install 'mypy[mypyc]>=2.4,<3'")


def _compile(
    scratch: Path, log: Path, progress: Progress, optimize: int, modules: Sequence[str], limit_s: float
) -> None:
    """Raises: ConfigError."""
    for package in PACKAGES:
        shutil.copytree(ROOT / package, scratch / package, ignore=_only_sources)
    files = [f"{name.replace('.', '/')}.py" for name in modules]
    jobs = len(os.sched_getaffinity(0))
    command = [sys.executable, str(_WORKER), str(optimize), str(jobs), *files]
    with log.open("wb") as said:
        worker = subprocess.Popen(command, cwd=scratch, stdout=said, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            until = time.monotonic() + limit_s
            while worker.poll() is None:
                if time.monotonic() > until:
                    raise ConfigError(f"compiling took longer than {limit_s:.0f} s (output: {log})")
                progress(*_counts(scratch / "build"))
                time.sleep(_POLL_S)
        finally:
            if worker.poll() is None:
                os.killpg(worker.pid, signal.SIGKILL)  # compilers, too
            worker.wait()
    if worker.returncode:
        raise ConfigError(f"the modules cannot be compiled: {_reason(log)} (full output: {log})")
    log.unlink()


def _only_sources(folder: str, names: list[str]) -> list[str]:
    """Names that are not copied."""
    return [name for name in names if not name.endswith(".py") and not Path(folder, name).is_dir()]


def _counts(folder: Path) -> tuple[int, int]:
    return sum(1 for _ in folder.rglob("*.o")), sum(1 for _ in folder.rglob("*.c"))


def _reason(log: Path) -> str:
    """The first error; commands name flags like -Werror."""
    lines = log.read_text(errors="replace").splitlines()
    reason = next((line for line in lines if "error: " in line), lines[-1] if lines else "no word")
    return textwrap.shorten(reason, _REASON_WIDTH, placeholder=" ...")


def _collect(scratch: Path, made: Path) -> None:
    """Move the compiled modules, in the layout of their packages."""
    for path in sorted(scratch.rglob(f"*{SUFFIX}")):
        if "build" not in path.relative_to(scratch).parts:
            target = made / path.relative_to(scratch)
            target.parent.mkdir(parents=True, exist_ok=True)
            os.replace(path, target)


# Whether a simulation runs compiled.


def prefer_compiled() -> bool:
    """Use the build of these sources, if one exists; to be called before the simulator is imported.

    Returns: whether it is used.
    Effects: see `compiled.use`.
    """
    try:
        folder = current()
    except ConfigError:
        return False  # no build can exist
    return folder.is_dir() and compiled.use(folder)
