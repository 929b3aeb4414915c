"""Makes Ray's dashboard find the page `/pools`: put this folder on PYTHONPATH of the process that starts Ray.

Python imports a module of this name at every start, so it does as little as possible: only in the process of Ray's
dashboard it adds a folder to the package in which Ray looks for modules. Then it runs the next sitecustomize on the
path, if there is one.
"""

import os.path
import sys
from importlib.machinery import ModuleSpec, PathFinder

_HERE = os.path.dirname(os.path.realpath(__file__))
_DASHBOARD = "ray/dashboard/dashboard.py"
_MODULES = "ray.dashboard.modules"


class ModulesFinder:
    """Finds Ray's package of dashboard modules, and adds our folder to it."""

    @staticmethod
    def find_spec(name: str, path: list[str] | None, target: object = None) -> ModuleSpec | None:
        """Spec of Ray's package with our folder added; None for any other name."""
        if name != _MODULES:
            return None
        spec = PathFinder.find_spec(name, path)
        if spec is not None and spec.submodule_search_locations is not None:
            spec.submodule_search_locations.append(os.path.join(_HERE, "modules"))
        return spec


def _run_next() -> None:
    """Run the sitecustomize that this one hides, if there is one."""
    others = [entry for entry in sys.path if os.path.realpath(entry) != _HERE]
    spec = PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        from importlib.util import module_from_spec

        spec.loader.exec_module(module_from_spec(spec))


if any(argument.endswith(_DASHBOARD) for argument in sys.orig_argv):
    sys.meta_path.insert(0, ModulesFinder)  # type: ignore[arg-type] # a list is what Python passes
_run_next()
