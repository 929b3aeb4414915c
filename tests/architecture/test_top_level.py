"""The top level of the repository has only allowed entries; NOTICE names all vendored code."""

import re
import subprocess
import tomllib

from tests.architecture.source_tree import ROOT

ALLOWED = {
    *("serving", "hardware", "loadgen", "deploy", "tests", "docs", "examples"),
    *("pyproject.toml", "Makefile", "Dockerfile"),
    *("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "CITATION.cff", "SECURITY.md", "LICENSE", "NOTICE"),
}
"""Also names that start with a dot: settings of tools, and `.ci/`."""
_PATH_IN_NOTICE = re.compile(r"\b(?:serving|hardware|loadgen|deploy|tests)/[\w./-]*\w/?")


def committed() -> list[str]:
    """Every file of the repository: those tracked by git, or all files in a copy without history."""
    if not (ROOT / ".git").exists():
        return [path.relative_to(ROOT).as_posix() for path in ROOT.rglob("*") if path.is_file()]
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True)
    return listed.stdout.rstrip("\0").split("\0")


def test_the_top_level_holds_only_what_is_allowed() -> None:
    top = {path.partition("/")[0] for path in committed()}
    assert sorted(name for name in top - ALLOWED if not name.startswith(".")) == []


def test_every_path_that_the_notice_names_is_there() -> None:
    named = _PATH_IN_NOTICE.findall((ROOT / "NOTICE").read_text())
    assert len(named) > 5
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_the_notice_names_what_is_vendored() -> None:
    notice = (ROOT / "NOTICE").read_text()
    vendored = [path for path in committed() if ".min." in path or path.endswith((".woff", ".woff2", ".ttf", ".otf"))]
    assert vendored
    assert [path for path in vendored if path.rpartition("/")[2] not in notice] == []


def test_the_package_carries_every_licence() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["license"] == "Apache-2.0"
    found = {path for path in committed() if "LICENSE" in path.rpartition("/")[2]}
    assert found <= set(project["license-files"])
    assert all((ROOT / path).exists() for path in project["license-files"])
