"""What a wheel contains: the native library and the simulator's compiled modules, as far as they can be built."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from serving.compiled import ROOT, build_name
from serving.tools.compilation import build as builder

NATIVE = """
from pathlib import Path
def packaged_library(): return Path("library.so")
def find_compiler(): return ("c++",)
def library_sources(): return ()
def build(target, compiler, sources): target.touch()
"""
COMPILATION = """
def build(progress, result):
    if {fails}: raise SystemExit("mypyc is not installed")
    result.mkdir()
"""


def wheel_of(root: Path, monkeypatch: pytest.MonkeyPatch, *, fails: bool) -> tuple[dict[str, Any], list[str]]:
    """Run the hook on a tree of stand-ins. Returns: its build data, and its warnings."""
    for name, text in {
        "model/native/build.py": NATIVE,
        "tools/compilation/build.py": COMPILATION.format(fails=fails),
        "compiled.py": "def build_name(): return 'modules-1'",
    }.items():
        path = root / "serving" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    for folder in ("", "tools", "tools/compilation"):
        (root / "serving" / folder / "__init__.py").touch()
    interface = ModuleType("hatchling.builders.hooks.plugin.interface")
    interface.BuildHookInterface = object  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, interface.__name__, interface)
    found = importlib.util.spec_from_file_location("hook", ROOT / "serving/model/native/hatch_hook.py")
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    warnings: list[str] = []
    hook = module.NativeLibraryHook()
    hook.root, hook.app = str(root), SimpleNamespace(display_warning=warnings.append)
    data: dict[str, Any] = {"force_include": {}}
    hook.initialize("standard", data)
    assert all(Path(path).exists() for path in data["force_include"])
    hook.finalize("standard", data, "")
    assert not any(Path(path).exists() for path in data["force_include"])
    return data, warnings


def test_a_wheel_contains_what_was_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, warnings = wheel_of(tmp_path, monkeypatch, fails=False)
    assert sorted(data["force_include"].values()) == ["serving/model/native/library.so", "serving/modules-1"]
    assert (data["pure_python"], warnings) == (False, [])


def test_without_the_tools_a_wheel_has_the_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, warnings = wheel_of(tmp_path, monkeypatch, fails=True)
    assert list(data["force_include"].values()) == ["serving/model/native/library.so"]
    assert warnings == ["the simulator's modules are not compiled: mypyc is not installed"]


def test_the_modules_of_the_wheel_are_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builder, "ROOT", tmp_path)
    packaged = tmp_path / "serving" / build_name()
    assert builder.current() != packaged
    packaged.mkdir(parents=True)
    assert builder.current() == packaged
    assert builder.build(lambda done, of: None) == packaged
