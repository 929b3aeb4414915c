"""Compiles the native library during the package's own build if there is a compiler; an install never fails without.

A wheel includes the library and the compiled modules of the simulator. An editable install, which uses the sources in
place, fills the user's cache with the library only: its sources change, and `cloudmatrix compile` takes a minute.
Without a C++ compiler a wheel is pure Python: the library is built on first use, or torch computes, and the simulator
runs its sources.
"""

import importlib.util
import subprocess
import sys
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_COMPILE = """
import sys
from pathlib import Path
from serving.compiled import build_name
from serving.tools.compilation.build import build
build(lambda done, of: None, Path(sys.argv[1]) / build_name())
"""


class NativeLibraryHook(BuildHookInterface):  # type: ignore[type-arg]  # generic since hatchling 1.26, not before
    """Runs before hatchling assembles a wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build the library and the simulator's modules, and add them to hatchling's build data.

        Args:
            version: `editable` or `standard`.
            build_data: of the wheel; changed to platform-specific, with the files that were built.
        Effects: writes the user's cache folder, or a temporary one that `finalize` removes.
        """
        if version != "editable":
            build_data["force_include"].update(_shipped(Path(self.root)))
        self._scratch: tempfile.TemporaryDirectory[str] | None = None
        builder = _load_builder(Path(self.root))
        try:
            if version == "editable":
                builder.cached_library(self.app.display_info)
                return
            compiler = builder.find_compiler()  # without one mypyc would check types for a minute, and then fail, too
            self._scratch = tempfile.TemporaryDirectory(prefix="cloudmatrix-infer-")
            library = Path(self._scratch.name) / builder.packaged_library().name
            builder.build(library, compiler, builder.library_sources())
            self._include(build_data, library, "serving/model/native")
        except Exception as error:  # any error: the package works without the library
            self.app.display_warning(f"the native step is not built now, but on first use: {error}")
        if self._scratch is not None:
            self._compile_simulator(build_data, Path(self._scratch.name) / "modules")

    def _compile_simulator(self, build_data: dict[str, Any], folder: Path) -> None:
        folder.mkdir()
        command = [sys.executable, "-c", _COMPILE, str(folder)]
        done = subprocess.run(command, cwd=self.root, capture_output=True, text=True, check=False)
        if done.returncode:
            reason = (done.stderr.splitlines() or ["no word"])[-1]
            self.app.display_warning(f"the simulator's modules are not compiled: {reason}")
            return
        (made,) = (path for path in folder.iterdir() if path.is_dir())
        self._include(build_data, made, "serving")

    def _include(self, build_data: dict[str, Any], path: Path, folder: str) -> None:
        build_data["force_include"][str(path)] = f"{folder}/{path.name}"
        build_data["pure_python"] = False
        build_data["infer_tag"] = True

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove the temporary folder."""
        if self._scratch is not None:
            self._scratch.cleanup()


def _shipped(root: Path) -> dict[str, str]:
    """Topologies and models of deploy/, and their places in the wheel; see `serving.shipped`."""
    of_models = (path for path in root.glob("deploy/models/*/*") if path.suffix in (".json", ".md", ".safetensors"))
    found = [*root.glob("deploy/*.toml"), *of_models]
    return {str(path): f"serving/{path.relative_to(root)}" for path in found}


def _load_builder(root: Path) -> ModuleType:
    """Load build.py by its path, since the package is not installed yet."""
    path = root / "serving" / "model" / "native" / "build.py"
    spec = importlib.util.spec_from_file_location("native_build", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
