"""The versions that `make` installs (deploy/constraints.txt) satisfy pyproject.toml, and cover all its dependencies."""

import tomllib

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.architecture.source_tree import ROOT

PINNED_IN_PYPROJECT = {"torch"}


def constraints() -> dict[str, Requirement]:
    """Every line of the file, by canonical name."""
    lines = (ROOT / "deploy" / "constraints.txt").read_text().splitlines()
    found = [Requirement(line) for line in lines if line and not line.startswith("#")]
    return {canonicalize_name(each.name): each for each in found}


def declared() -> list[Requirement]:
    """All direct dependencies, those of the extras too."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    groups = [project["dependencies"], *project["optional-dependencies"].values()]
    return [Requirement(text) for group in groups for text in group]


def test_every_constraint_is_one_version() -> None:
    for name, each in constraints().items():
        assert [specifier.operator for specifier in each.specifier] == ["=="], name


def test_every_dependency_has_a_version_that_is_allowed() -> None:
    pinned = constraints()
    for dependency in declared():
        name = canonicalize_name(dependency.name)
        if name in PINNED_IN_PYPROJECT:
            assert name not in pinned, "its builds for CPU and CUDA differ in name"
            continue
        assert name in pinned, f"`make lock` was not run since {dependency} was added"
        (version,) = (specifier.version for specifier in pinned[name].specifier)
        assert dependency.specifier.contains(version), f"{name}: {version} is not {dependency.specifier}"
