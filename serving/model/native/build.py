"""Compiles the native library from its sources into one shared library, once per machine.

Imports only the standard library, because the package's own build loads this file by its path.

Theory of operation. Every instruction set is one source file with its own flags; the parts are compiled in parallel and
linked in a temporary folder, then moved into place atomically. The name of the result contains a fingerprint of
sources, flags and compiler, so changed sources give another library and no file is overwritten. Processes that start
at the same time wait for the holder of the lock and use its result.
"""

import contextlib
import fcntl
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

SOURCES = Path(__file__).parent
_ROOT = SOURCES.parents[2]
_OTHER_HEADERS = "hardware/ub/native"
"""Folder of other included headers, relative to the root: the exchange between ranks."""

_FLAGS = ("-std=c++17", "-O3", "-ffp-contract=off", "-fno-math-errno", "-fPIC", "-fvisibility=hidden", "-pthread")
_AVX2 = ("-mavx2", "-mfma", "-mf16c")
_AVX512 = (*_AVX2, *(f"-mavx512{part}" for part in ("f", "bw", "dq", "vl", "vnni", "bf16")))
_AMX = (*_AVX512, "-mamx-tile", "-mamx-bf16", "-mamx-int8")
INSTRUCTIONS: Mapping[str, Sequence[str]] = {"isa_avx2": _AVX2, "isa_avx512": _AVX512, "isa_amx": _AMX}
"""Additional flags by source file. If the compiler does not support them, that instruction set is left out."""

_COMPILERS = ("c++", "g++", "clang++")
_LIMIT_S = 600.0
_KEPT = 8
"""Number of libraries kept in the cache, for checkouts and compilers used side by side."""


class BuildError(Exception):
    """The library cannot be built on this machine; the text is one line with the reason."""


def find_compiler() -> tuple[str, ...]:
    """The C++ compiler: `CXX`, parsed as in other build tools, else the first installed one.

    Raises: BuildError if there is none.
    """
    chosen = shlex.split(os.environ.get("CXX", ""))
    for command in (chosen,) if chosen else ((name,) for name in _COMPILERS):
        if shutil.which(command[0]):
            return tuple(command)
    if chosen:
        raise BuildError(f"the compiler of CXX, {chosen[0]}, does not exist")
    raise BuildError("there is no C++ compiler (c++, g++ or clang++)")


def source_fingerprint(folder: Path = SOURCES) -> str:
    """Short digest of the sources and the flags."""
    digest = hashlib.blake2b(repr((_FLAGS, INSTRUCTIONS, platform.machine())).encode(), digest_size=8)
    others = sorted((_ROOT / _OTHER_HEADERS).glob("*.h"))
    for path in (*sorted((*folder.glob("*.h"), *folder.glob("*.cpp"))), *others):
        digest.update(f"\0{path.name}\0".encode() + path.read_bytes())
    return digest.hexdigest()


def packaged_library(folder: Path = SOURCES) -> Path:
    """Path of the library built together with the package; it may not exist."""
    return folder / f"cm_native-{source_fingerprint(folder)}.so"


def cached_library(announce: Callable[[str], None], folder: Path = SOURCES) -> Path:
    """The library for these sources and this machine's compiler, built if not cached.

    Args:
        announce: called once when a build starts.
    Raises: BuildError if it cannot be built, or stored anywhere.
    Effects: writes the user's cache folder, or a private one among temporary files if that cannot be written.
    """
    compiler = find_compiler()
    name = f"cm_native-{source_fingerprint(folder)}-{_version(compiler)}.so"
    cache = writable_folder()
    library = cache / name
    if not library.exists():
        with lock(cache / f"{name}.lock"):
            if not library.exists():
                announce("compiling the native step for this machine, once: about half a minute")
                build(library, compiler, library_sources(folder))
                forget_old(library, "cm_native-*.so", _KEPT)
    with contextlib.suppress(OSError):  # deleted, or on another user's file system: only its age is updated
        os.utime(library)
    return library


def library_sources(folder: Path = SOURCES) -> list[Path]:
    """Sources of the library."""
    return sorted(folder.glob("*.cpp"))


def build(
    result: Path,
    compiler: Sequence[str],
    sources: Sequence[Path],
    flags: Sequence[str] = ("-shared",),
    instructions: Mapping[str, Sequence[str]] = INSTRUCTIONS,
) -> None:
    """Compile and link.

    Args:
        result: written atomically.
        flags: for every call of the compiler, in addition to the usual ones; `-shared` makes a library.
        instructions: additional flags by the name of the source file.
    Raises: BuildError if the compiler fails; its output is kept next to the result as `*.log`.
    Effects: writes the result's folder.
    """
    log = result.with_suffix(".log")
    with tempfile.TemporaryDirectory(dir=result.parent, prefix="build-") as scratch:
        parts = compile_parts(Path(scratch), compiler, sources, flags, instructions, log)
        link(result, compiler, parts, flags, log)


def compile_parts(
    folder: Path,
    compiler: Sequence[str],
    sources: Sequence[Path],
    flags: Sequence[str],
    instructions: Mapping[str, Sequence[str]],
    log: Path,
) -> list[Path]:
    """Compile in parallel into the folder.

    Returns: one object file per source.
    Raises: BuildError if the compiler fails; `log` then contains its output.
    """
    # The sources with extra flags take by far the longest.
    ordered = sorted(sources, key=lambda source: (source.stem not in instructions, source.stem))
    parts = [folder / f"{source.stem}.o" for source in ordered]

    def compile_one(source: Path, part: Path) -> None:
        own = instructions.get(source.stem, ())
        known = own if own and _knows(compiler, own) else ()
        _run([*compiler, *_FLAGS, "-iquote", str(_ROOT), *flags, *known, "-c", str(source), "-o", str(part)], log)

    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        list(pool.map(compile_one, ordered, parts))
    return parts


def link(result: Path, compiler: Sequence[str], parts: Sequence[Path], flags: Sequence[str], log: Path) -> None:
    """Link the parts; the result is written atomically.

    Raises: BuildError if the compiler fails; `log` then contains its output.
    """
    with tempfile.TemporaryDirectory(dir=result.parent, prefix="link-") as scratch:
        whole = Path(scratch) / result.name
        _run([*compiler, *_FLAGS, *map(str, parts), *flags, "-o", str(whole)], log)
        os.replace(whole, result)


def _knows(compiler: Sequence[str], flags: Sequence[str]) -> bool:
    probe = [*compiler, *flags, "-Werror", "-fsyntax-only", "-x", "c++", os.devnull]
    return subprocess.run(probe, capture_output=True, timeout=_LIMIT_S).returncode == 0


def _run(command: Sequence[str], log: Path) -> None:
    """Raises: BuildError if the command fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=_LIMIT_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BuildError(f"{command[0]} could not be run ({error})") from error
    if done.returncode:
        log.write_text(shlex.join(command) + "\n" + done.stdout + done.stderr, encoding="utf-8")
        said = next((line for line in done.stderr.splitlines() if "error" in line), f"status {done.returncode}")
        raise BuildError(f"{command[0]} failed: {said.strip()} (full output: {log})")


def _version(compiler: Sequence[str]) -> str:
    """Short name of a compiler and its version."""
    try:
        said = subprocess.run([*compiler, "--version"], capture_output=True, timeout=_LIMIT_S).stdout
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BuildError(f"{compiler[0]} could not be run ({error})") from error
    return hashlib.blake2b(said + repr(tuple(compiler)).encode(), digest_size=4).hexdigest()


def writable_folder() -> Path:
    """The user's folder for files compiled on this machine.

    Raises: BuildError if none is usable.
    Effects: creates it.
    """
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    private = Path(tempfile.gettempdir()) / f"cloudmatrix-infer-{os.getuid()}"
    for folder in (Path(home) / "cloudmatrix-infer", private):
        with contextlib.suppress(OSError):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            # Code is loaded from this folder, so no other user may have created it.
            if folder.stat().st_uid == os.getuid() and os.access(folder, os.W_OK | os.X_OK):
                return folder
    raise BuildError(f"neither {home} nor {private} can be written")


def forget_old(newest: Path, pattern: str, kept: int) -> None:
    """Delete the least recently used entries. Processes that have loaded one keep it.

    Args:
        newest: the entry just made, in the same folder as the others.
        pattern: of the names of files or folders; the lock next to one is deleted with it.
        kept: number of entries to keep.
    Effects: deletes entries, except those that cannot be deleted.
    """
    aged = []
    for path in newest.parent.glob(pattern):
        with contextlib.suppress(OSError):  # another process also deletes entries
            aged.append((path != newest, -path.stat().st_mtime_ns, path))
    for _, _, old in sorted(aged)[kept:]:
        with contextlib.suppress(OSError):
            if old.is_dir():
                shutil.rmtree(old, ignore_errors=True)
            else:
                old.unlink()
            old.with_name(f"{old.name}.lock").unlink()


@contextlib.contextmanager
def lock(path: Path) -> Iterator[None]:
    """A lock held by one process at a time and released when the process ends."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
