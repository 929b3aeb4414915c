"""Every module of the product is reached from an entry point, not only from tests."""

import re
import tomllib
from collections.abc import Mapping, Sequence

import pytest

from loadgen.cli.main import COMMANDS as LOADGEN_COMMANDS
from serving.cli.command_line import COMMANDS
from tests.architecture.import_rules import unreached
from tests.architecture.source_tree import ROOT, Source, read_sources

SOURCES = read_sources("hardware", "serving", "loadgen")
SCRIPTS = read_sources("docs", "deploy", "examples")
"""Hooks of the documentation, deploy scripts and examples: each is started as a file."""

BY_NAME = {
    "loadgen.driver.worker": ("loadgen.driver.worker_process", "from loadgen.driver.worker import main"),
    "loadgen.selftest.blast_server": ("loadgen.selftest.ceiling", '"-m", "loadgen.selftest.blast_server"'),
    "serving.scaling.dashboard.site.sitecustomize": ("serving.cluster.host_environment", '"dashboard" / "site"'),
    "serving.scaling.dashboard.site.modules.cloudmatrix_pools": (
        "serving.scaling.dashboard.site.sitecustomize", '"modules"',
    ),
    "serving.instance.live.image_writer": (
        "serving.instance.live.compute_native", "from serving.instance.live.image_writer import main",
    ),
    "hardware.cost.checked_sources": ("hardware.cost.checked", "python -m hardware.cost.checked_sources"),
    "serving.tools.compilation.worker": ("serving.tools.compilation.build", 'with_name("worker.py")'),
}  # fmt: skip
"""Modules without an import statement for them: the module that starts each, and the code that does it."""
_IMPORT_PATH = re.compile(r"^\s*import_path: ([\w.]+):", re.MULTILINE)


def entry_points() -> set[str]:
    """Console scripts, modules for `python -m`, the build hook, Serve's applications, and what scripts import."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    hook = project["tool"]["hatch"]["build"]["targets"]["wheel"]["hooks"]["custom"]["path"]
    applications = [
        name for file in (ROOT / "deploy").rglob("*.yaml") for name in _IMPORT_PATH.findall(file.read_text())
    ]
    assert applications
    return {
        *(target.partition(":")[0] for target in project["project"]["scripts"].values()),
        *(source.module for source in SOURCES if source.module.endswith(".__main__")),
        hook.removesuffix(".py").replace("/", "."),
        *applications,
        *(module for script in SCRIPTS for module in _modules_in(script)),
    }


def _modules_in(script: Source) -> list[str]:
    """Names of modules in a script's imports: `from a.b import c` names `a.b`, and `a.b.c` if that is a module."""
    return [part for name in script.imports for part in (name, name.rpartition(".")[0])]


def started_by_name() -> dict[str, list[str]]:
    """Modules that each module starts by name."""
    found = {
        "serving.cli.command_line": [f"serving.cli.{name.replace('-', '_')}" for name in COMMANDS],
        "loadgen.cli.main": [f"loadgen.cli.{name}_command" for name in LOADGEN_COMMANDS],
    }
    for module, (starter, _) in BY_NAME.items():
        found.setdefault(starter, []).append(module)
    return found


def test_every_module_is_reached_from_an_entry_point() -> None:
    assert unreached(SOURCES, entry_points(), started_by_name()) == []


@pytest.mark.parametrize("module", BY_NAME)
def test_what_is_started_by_name_is_still_started_so(module: str) -> None:
    starter, code = BY_NAME[module]
    (source,) = (one for one in SOURCES if one.module == starter)
    assert code in source.text


def missed(texts: Mapping[str, str], by_name: Mapping[str, Sequence[str]]) -> list[str]:
    """Modules that `app.main` does not reach, in sources given by module name."""
    sources = [Source(f"{module.replace('.', '/')}.py", module, text) for module, text in texts.items()]
    return unreached(sources, ["app.main", "elsewhere"], by_name)


def test_the_checker_sees_a_module_that_nothing_imports() -> None:
    texts = {
        "app": "from app.shown import thing\n",
        "app.main": "def late():\n    from app import deep\n",
        "app.deep": "import app.deeper\n",
        "app.deeper": "",
        "app.shown": "thing = 1\n",
        "app.dead": "from app import dead_too\n",
        "app.dead_too": "from app import main, dead\n",
    }
    assert missed(texts, {}) == ["app.dead", "app.dead_too"]


def test_the_checker_sees_what_is_started_by_name() -> None:
    texts = {"app": "", "app.main": "", "app.child": "from app import tool\n", "app.tool": ""}
    assert missed(texts, {}) == ["app.child", "app.tool"]
    assert missed(texts, {"app.main": ["app.child"]}) == []
    assert missed(texts, {"app.tool": ["app.child"]}) == ["app.child", "app.tool"]
