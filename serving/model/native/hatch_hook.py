"""Compiles the native library during the package's own build if there is a compiler; an install never fails without.

A wheel includes the library. An editable install, which uses the sources in place, fills the user's cache. Without a
compiler this step is skipped: the library is built on first use, or torch computes.
"""

import importlib.util
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class NativeLibraryHook(BuildHookInterface):
    """Runs before hatchling assembles a wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build the library and add it to hatchling's build data.

        Args:
            version: `editable` or `standard`.
            build_data: of the wheel; changed to platform-specific, with one more file.
        Effects: writes the user's cache folder, or a temporary one that `finalize` removes.
        """
        if version != "editable":
            build_data["force_include"].update(_shipped(Path(self.root)))
        self._scratch: tempfile.TemporaryDirectory[str] | None = None
        try:
            builder = _load_builder(Path(self.root))
            if version == "editable":
                builder.cached_library(self.app.display_info)
                return
            name = builder.packaged_library().name
            compiler = builder.find_compiler()
            self._scratch = tempfile.TemporaryDirectory(prefix="cloudmatrix-infer-")
            library = Path(self._scratch.name) / name
            builder.build(library, compiler, builder.library_sources())
        except Exception as error:  # any error: the package works without the library
            self.app.display_warning(f"the native step is not built now, but on first use: {error}")
            return
        build_data["force_include"][str(library)] = f"serving/model/native/{name}"
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
