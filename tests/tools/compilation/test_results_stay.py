"""Simulations of compiled modules equal those of the sources, to the last byte."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from serving.compiled import build_name
from serving.tools.compilation.build import build
from tests.virtual.core.case import CONFIG

pytestmark = [
    pytest.mark.slow, pytest.mark.builds, pytest.mark.timeout(900),
    pytest.mark.nightly(
        "tests/tools/compilation/test_build.py::test_compiled_modules_compute_what_their_sources_do"
    ),
]  # fmt: skip

AUTOSCALED = CONFIG.with_name("cloudmatrix384-autoscaled.toml")
LOAD = ("--poisson", "6", "--prompt", "3000", "--output", "120", "--reuse", "0.4")
PARTS = [
    *("--set", "autoscaler.decode_step_npus=8", "--set", "autoscaler.min_decode_npus=24"),
    *("--set", "autoscaler.max_decode_npus=96", "--set", "simulation.graphs_s=2"),
]
RUNS: dict[str, tuple[Path, list[str]]] = {
    "plain": (CONFIG, ["--duration", "120", "--check", "--requests"]),
    "faults": (CONFIG, ["--duration", "60", "--fault-rate", "1e5", "--seed", "5", "--check", "--requests"]),
    "scaling": (AUTOSCALED, ["--duration", "300"]),
    "parts": (AUTOSCALED, ["--duration", "120", *PARTS]),
    "processes": (CONFIG, ["--duration", "40", "--supernodes", "3", "--processes", "2", "--requests"]),
}


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's cache folder with a build."""
    home = tmp_path_factory.mktemp("cache")
    folder = home / "cloudmatrix-infer" / build_name()
    folder.parent.mkdir(mode=0o700)
    told: list[tuple[int, int]] = []
    assert build(lambda done, of: told.append((done, of)), folder, optimize=0) == folder
    assert told[0] == (0, 0)
    assert 0 < told[-1][0] <= told[-1][1]
    assert [path.name for path in folder.parent.iterdir() if path.suffix != ".lock"] == [folder.name]
    return home


def simulate(cache: Path, config: Path, *flags: str) -> "subprocess.CompletedProcess[bytes]":
    command = [sys.executable, "-m", "serving.cli", "simulate", "--config", str(config), *LOAD, "--json", *flags]
    environment = {**os.environ, "XDG_CACHE_HOME": str(cache)}
    done = subprocess.run(command, env=environment, capture_output=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return done


@pytest.mark.parametrize("name", RUNS)
def test_to_the_last_byte(name: str, cache: Path) -> None:
    config, flags = RUNS[name]
    compiled, sources = simulate(cache, config, *flags), simulate(cache, config, *flags, "--interpreted")
    assert len(compiled.stdout) > 10_000
    assert compiled.stdout == sources.stdout


def test_it_is_used_and_found_again(cache: Path) -> None:
    code = "from serving import cli, compiled; code = cli.main({}); print(code, compiled.in_use())"
    folder = str(cache / "cloudmatrix-infer" / build_name())
    environment = {**os.environ, "XDG_CACHE_HOME": str(cache)}
    for argv, used in ((["compile", "--quiet"], f"{folder}\n0 None"), (["reproduce", "--list"], f"0 {folder}")):
        told = subprocess.run(
            [sys.executable, "-c", code.format(argv)], env=environment, capture_output=True, text=True, timeout=600
        )
        assert told.stdout.strip().endswith(used), told.stderr
