"""`cloudmatrix node-env`: its lines are shell commands, and set the same variables as a local start."""

import subprocess
from pathlib import Path

import pytest

from serving.cli import main
from serving.cluster.host_environment import DASHBOARD_SITE, EVERY_HOST


def variables(printed: str) -> dict[str, str]:
    """Environment of a shell that has evaluated the lines."""
    done = subprocess.run(
        ["sh", "-c", f"{printed}\nenv"], env={"PYTHONPATH": "before"}, capture_output=True, text=True, check=True
    )
    return dict(line.partition("=")[::2] for line in done.stdout.splitlines())


def test_a_shell_understands_them(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    token = tmp_path / "the token"
    assert main(["node-env", "--token-file", str(token)]) == 0
    found = variables(capsys.readouterr().out)
    assert EVERY_HOST.items() <= found.items()
    assert (found["RAY_AUTH_MODE"], found["RAY_AUTH_TOKEN_PATH"]) == ("token", str(token))
    assert found["PYTHONPATH"] == f"{DASHBOARD_SITE}:before"
    assert found["RAY_health_check_failure_threshold"] == "5"


def test_limits_come_from_the_configuration(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "a.toml"
    file.write_text('[model]\npath = "m"\n[health]\nnode_misses = 7\n')
    assert main(["node-env", "--no-token", "--config", str(file)]) == 0
    found = variables(capsys.readouterr().out)
    assert found["RAY_health_check_failure_threshold"] == "7"
    assert found["RAY_AUTH_MODE"] == "disabled"
    assert "RAY_AUTH_TOKEN_PATH" not in found
