"""Errors that a user can correct are reported quickly in one line, and leave no process running."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.server import Server
from tests.e2e.topology import small

pytestmark = pytest.mark.slow


@pytest.fixture
def config(tmp_path: Path, checkpoint: Path) -> Path:
    return small(tmp_path, checkpoint, prefill=1, decode=1)


@pytest.fixture
def taken() -> Iterator[int]:
    """A port that is already in use."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


def refused(config: Path, *arguments: str, port: int | None = None) -> str:
    """Start and expect a refusal. Returns: its line."""
    server = Server(config, *arguments, port=port)
    try:
        server.launch()
        assert server.process.wait(120) == 2
        server.wait_ended()
        server.assert_nothing_left()
        assert server.out == ""
        lines = server.err.splitlines()
        assert len(lines) == 1, server.err
        return lines[0]
    finally:
        server.end()


def test_the_port_is_taken(config: Path, taken: int) -> None:
    assert f"port {taken} on 127.0.0.1 is in use" in refused(config, port=taken)


def test_the_dashboards_port_is_taken(config: Path, taken: int) -> None:
    config.write_text(config.read_text().replace("dashboard_port = 0", f"dashboard_port = {taken}"))
    line = refused(config)
    assert f"port {taken} on 127.0.0.1 is in use" in line
    assert "dashboard_port" in line


def test_there_is_no_model(config: Path, tmp_path: Path) -> None:
    missing = tmp_path / "nothing-here"
    assert str(missing) in refused(config, "--model", str(missing))


def test_the_folder_holds_no_model(config: Path, tmp_path: Path) -> None:
    assert "config.json" in refused(config, "--model", str(tmp_path))


def test_the_weights_are_missing(config: Path, tmp_path: Path, checkpoint: Path) -> None:
    hollow = tmp_path / "hollow"
    hollow.mkdir()
    for file in checkpoint.iterdir():
        if file.suffix != ".safetensors":
            (hollow / file.name).write_bytes(file.read_bytes())
    assert "safetensors" in refused(config, "--model", str(hollow))


def test_a_key_is_unknown(config: Path) -> None:
    config.write_text(config.read_text() + "\n[gateway]\nprot = 8000\n")
    line = refused(config)
    assert "prot" in line
    assert "port" in line, "it says what was probably meant"


def test_there_is_no_configuration(tmp_path: Path) -> None:
    assert "absent.toml" in refused(tmp_path / "absent.toml")


def test_there_are_too_few_npus(tmp_path: Path, checkpoint: Path) -> None:
    line = refused(small(tmp_path, checkpoint, prefill=2, decode=3))
    assert "10" in line
    assert "8" in line
    assert "NPU" in line
