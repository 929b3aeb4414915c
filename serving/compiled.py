"""Modules of this package that were compiled ahead of time, in place of their sources: same code, faster.

A wheel contains them; in a checkout `cloudmatrix compile` makes them (serving/tools/compilation). A build is valid for
exactly one state of the sources, so that it never shadows an edited file. Standard library only, and nothing of this
package: the choice of a build must precede the import of any module that may be compiled.
"""

import hashlib
import sys
from collections.abc import Sequence
from functools import cache
from importlib.abc import MetaPathFinder
from importlib.machinery import EXTENSION_SUFFIXES, ExtensionFileLoader, ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType

PACKAGES = ("hardware", "serving")
ROOT = Path(__file__).resolve().parent.parent
SUFFIX = EXTENSION_SUFFIXES[0]
"""Suffix of a compiled module's file, for this interpreter and machine."""


class _CompiledFinder(MetaPathFinder):
    """Finds modules in a build's folder; other modules are left to the next finder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._files = {_name(path.relative_to(folder)): str(path) for path in folder.rglob(f"*{SUFFIX}")}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """See importlib."""
        file = self._files.get(fullname)
        if file is None:
            return None
        return spec_from_file_location(fullname, file, loader=ExtensionFileLoader(fullname, file))

    def names(self) -> set[str]:
        """Names of all modules of the build."""
        return set(self._files)


def fingerprint(root: Path = ROOT) -> str:
    """Short name of the present state of all sources of `PACKAGES`."""
    digest = hashlib.blake2b(digest_size=8)
    for package in PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            digest.update(f"\0{path.relative_to(root)}\0".encode() + path.read_bytes())
    return digest.hexdigest()


@cache  # all sources are read, which takes longer than the rest of a command's start
def build_name() -> str:
    """Name of the folder of a build of these sources for this interpreter."""
    return f"modules-{fingerprint()}{SUFFIX}"


def use(folder: Path) -> bool:
    """Import from a build from now on.

    Returns: False if it is too late, because one of its modules was already imported from its source.
    Raises: ImportError if the folder does not exist, or is a build of other sources.
    Effects: sys.meta_path.
    """
    if in_use() is not None:
        return True
    if folder.name != build_name() or not folder.is_dir():
        raise ImportError(f"{folder} is no build of these sources; `cloudmatrix compile` makes one")
    finder = _CompiledFinder(folder)
    if not finder.names().isdisjoint(sys.modules):
        return False
    sys.meta_path.insert(0, finder)
    return True


def in_use() -> Path | None:
    """The build that this process imports from."""
    return next((finder.folder for finder in sys.meta_path if isinstance(finder, _CompiledFinder)), None)


def begin_worker(folder: Path | None) -> None:
    """Use the parent process's build: the initializer of a pool of processes.

    Args:
        folder: result of `in_use` in the parent.
    """
    if folder is not None:
        use(folder)


def _name(path: Path) -> str:
    return ".".join((*path.parent.parts, path.name.removesuffix(SUFFIX)))
