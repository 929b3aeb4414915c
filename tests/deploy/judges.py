"""The judge of each file of deploy/ that another program reads: that program, or its schema."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
ROOT = DEPLOY.parent
BIN = Path(sys.executable).parent
"""Where the tools of the extra `test` are."""


@dataclass(frozen=True)
class Judged:
    """One file, who judges it, and a mistake that must be found.

    Args:
        path: below deploy/.
        judge: takes a folder in the place of deploy/; returns what is wrong with the file there.
        mistake: a text of the file, and what it becomes by a slip of the hand.
    """

    path: str
    judge: Callable[[Path, str], str]
    mistake: tuple[str, str]


def tool(name: str) -> str:
    """A program's path; skips the test at a desk that lacks it, fails in CI."""
    found = str(BIN / name) if (BIN / name).exists() else shutil.which(name)
    if found is None:
        assert not os.environ.get("CI"), f"{name} is not installed"
        pytest.skip(f"{name} is not installed")
    return found


def told(*command: str, cwd: Path | None = None) -> str:
    """What a command says if it fails; nothing if it does not."""
    done = subprocess.run(command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120)
    return "" if done.returncode == 0 else done.stdout or f"exit code {done.returncode}"


def hadolint(folder: Path, path: str) -> str:
    """Judge a Dockerfile, warnings included."""
    return told(tool("hadolint"), "--no-color", str(folder / path))


def compose(folder: Path, path: str) -> str:
    """Judge a file of Docker Compose by compose-spec's schema, and whether the files that it mounts are there."""
    wrong = told(tool("check-jsonschema"), "--builtin-schema", "vendor.compose-spec", str(folder / path))
    for service in yaml.safe_load((folder / path).read_text())["services"].values():
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            if source.startswith("./") and not (folder / source).exists():
                wrong += f"{source} is not there\n"
    return wrong


def prometheus(folder: Path, path: str) -> str:
    """Judge Prometheus' configuration with all files that it names. Those of Ray are not there: Ray writes them."""
    config = folder / "prometheus" / "prometheus.yml"
    if path.endswith("gateways.compose.yaml"):
        shutil.copy(folder / path, folder / "prometheus" / "gateways.yaml")
    return told(tool("promtool"), "check", "config", "--lint=all", str(config))


def rules(folder: Path, path: str) -> str:
    """Judge rules."""
    return told(tool("promtool"), "check", "rules", "--lint=all", str(folder / path))


def unit(folder: Path, path: str) -> str:
    """Judge a unit of systemd; what it starts is looked for in this repository."""
    file = folder / path
    file.write_text(file.read_text().replace("/opt/cloudmatrix-infer", str(ROOT)))
    done = subprocess.run(
        [tool("systemd-analyze"), "verify", "--man=no", str(file)], capture_output=True, text=True, timeout=60
    )
    return done.stdout + done.stderr  # a line that it does not understand is a remark to it


def provisioning(folder: Path, path: str) -> str:
    """Judge what Grafana reads at its start, by what its documentation says: there is no schema of it."""
    schema = Path(__file__).parent / "data" / "grafana-provisioning.json"
    return told(tool("check-jsonschema"), "--schemafile", str(schema), str(folder / path))
