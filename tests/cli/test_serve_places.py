"""Ports and folders of a start are tested before a model is fetched or a heavy module imported."""

import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SERVE = """
import sys
from serving.cli import command_line, options as set_option
code = command_line.main(["serve", *sys.argv[1:]])
heavy = sorted({"torch", "ray", "transformers", "safetensors", "huggingface_hub"} & set(sys.modules))
print(code, *heavy)
"""


def refused(*arguments: str, environment: dict[str, str] | None = None) -> tuple[str, str]:
    """Exit code of `serve`, and its error message."""
    command = [sys.executable, "-c", SERVE, *arguments]
    env = {"PATH": "/usr/bin:/bin", "HF_HUB_OFFLINE": "1", **(environment or {})}
    told = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=50, check=True)
    return told.stdout.strip(), told.stderr


@pytest.fixture
def taken() -> Iterator[str]:
    """A port that is already in use."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield str(listener.getsockname()[1])


@pytest.mark.parametrize("model", [[], ["--model", "nobody/has-this"]])
def test_a_taken_port_is_said_first(taken: str, model: list[str]) -> None:
    told, complaint = refused("--port", taken, *model)
    assert told == "2"
    assert f"port {taken} on 127.0.0.1 is in use" in complaint


def test_so_is_the_dashboard_s(taken: str) -> None:
    told, complaint = refused("--port", "0", "--set", f"cluster.dashboard_port={taken}")
    assert told == "2"
    assert "dashboard_port" in complaint


def test_a_port_out_of_range_is_a_mistake_of_its_own() -> None:
    told, complaint = refused("--port", "99999")
    assert told == "2"
    assert "--port" in complaint
