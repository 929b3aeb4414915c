"""What a wheel contains: the native library and the simulator's compiled modules, as far as they can be built; and an
installed wheel serves the bundled topology and model.
"""

import importlib.util
import os
import subprocess
import sys
import sysconfig
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


def test_an_installed_wheel_brings_topology_and_model(tmp_path: Path) -> None:
    """Without a compiler, which saves a minute; dependencies are those of the tests."""

    def ran(*command: object, folder: Path = tmp_path) -> str:
        words = [str(word) for word in command]
        done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout.strip()

    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "CXX": "/nowhere/c++"}
    python = tmp_path / "env" / "bin" / "python"
    ran(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path, folder=ROOT)
    (wheel,) = tmp_path.glob("*-py3-none-any.whl")
    ran(sys.executable, "-m", "venv", "--without-pip", python.parents[1])
    pip = ("-m", "pip", "--disable-pip-version-check", "--python", python)
    ran(sys.executable, *pip, "install", "--no-deps", "--no-index", "--no-compile", wheel)
    site = Path(ran(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"))
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib"))  # an editable install there is not followed
    assert "--detach" in ran(python.with_name("cloudmatrix"), "serve", "--help")
    show = "from serving.config.load import load_config as load; from serving.shipped import DEFAULT_CONFIG as file"
    model = Path(ran(python, "-c", f"{show}; print(load(file).model.path)"))
    assert model.is_relative_to(site)
    assert (model / "model.safetensors").stat().st_size > 1_000_000
