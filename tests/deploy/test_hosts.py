"""Hosts made of namespaces: private resources of each, shared network, and the effect of faults."""

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.deploy.hosts import SCRIPT, Hosts, hosts

_ANSWER = """
import socket, sys
listening = socket.create_server((sys.argv[1], 5000)); print("ready", flush=True)
while True:
    listening.accept()[0].close()
"""
_REACH = "import socket, sys; socket.create_connection((sys.argv[1], 5000), timeout=float(sys.argv[2]))"


@pytest.fixture(scope="module")
def pair() -> Iterator[Hosts]:
    with hosts("left", "right") as made:
        yield made


@pytest.fixture
def answering(pair: Hosts) -> Iterator[None]:
    """A server at port 5000 of the right host."""
    command = pair.command("right", sys.executable, "-IS", "-c", _ANSWER, pair.addresses["right"])
    with subprocess.Popen(command, stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        assert server.stdout.readline() == b"ready\n"
        yield
        server.terminate()


def _reaches(pair: Hosts, patience_s: float = 30.0) -> bool:
    """Whether the right host responds to the left one. An absent host is detected only by a timeout, which is short."""
    line = pair.command("left", sys.executable, "-IS", "-c", _REACH, "right", str(patience_s))
    return subprocess.run(line, capture_output=True).returncode == 0


def test_each_has_its_own_name_memory_and_processes(pair: Hosts) -> None:
    pair.run("left", "touch", "/dev/shm/mine", "/tmp/mine")
    assert pair.run("left", "hostname") == "left\n"
    assert pair.run("left", "ls", "/dev/shm/mine", "/tmp/mine").split() == ["/dev/shm/mine", "/tmp/mine"]
    assert "mine" not in pair.run("right", "ls", "/dev/shm", "/tmp")
    assert len(pair.run("right", "sh", "-c", "ls -d /proc/[0-9]*").split()) <= 3
    assert pair.run("left", "ls", str(SCRIPT)) == f"{SCRIPT}\n"
    said = pair.run("middle", "true", check=False)
    assert "host middle is not up; up are: left, right" in said


def test_a_command_begins_in_the_hosts_own_folder(pair: Hosts) -> None:
    pair.run("left", "touch", "/tmp/only-here")
    done = subprocess.run(pair.command("left", "ls"), cwd="/tmp", capture_output=True, text=True, check=True)
    assert "only-here" in done.stdout


def test_no_server_is_asked_for_other_names(pair: Hosts) -> None:
    """No server would respond: Ray, which looks up cloud host names at its start, would wait for it 20 s."""
    assert pair.run("left", "cat", "/etc/resolv.conf") == ""
    assert pair.run("left", "getent", "hosts", "right").split() == [pair.addresses["right"], "right"]
    assert pair.run("left", "getent", "hosts", "metadata.google.internal", check=False) == ""


@pytest.mark.usefixtures("answering")
def test_one_reaches_the_other_by_name_unless_its_cable_is_out(pair: Hosts) -> None:
    assert _reaches(pair)
    pair.does("cut", "right")
    assert not _reaches(pair, 0.3)
    pair.does("join", "right")
    assert _reaches(pair)


@pytest.mark.usefixtures("answering")
def test_a_killed_host_comes_back_empty_at_its_address(pair: Hosts) -> None:
    pair.run("right", "touch", "/tmp/theirs")
    pair.does("kill", "right")
    assert not _reaches(pair, 0.3)
    pair.does("up", "right")
    assert "theirs" not in pair.run("right", "ls", "/tmp")
    assert pair.addresses["right"] in pair.run("right", "ip", "-brief", "address")


def test_a_frozen_host_goes_on_with_its_commands_or_ends_with_them(pair: Hosts) -> None:
    """A command's nsenter, outside, stops together with its command: the host would wait for it for ever."""
    with subprocess.Popen(pair.command("right", "cat"), stdin=subprocess.PIPE, stdout=subprocess.PIPE) as command:
        assert command.stdin is not None
        assert command.stdout is not None
        command.stdin.write(b"it runs\n")
        command.stdin.flush()
        assert command.stdout.readline() == b"it runs\n"
        pair.does("freeze", "right")
        _await_stopped(command.pid)
        command.stdin.write(b"meanwhile\n")
        command.stdin.flush()
        pair.does("thaw", "right")
        assert command.stdout.readline() == b"meanwhile\n"
        pair.does("freeze", "right")
        _await_stopped(command.pid)
        pair.does("kill", "right")
    assert command.returncode != 0
    pair.does("up", "right")


def _await_stopped(pid: int) -> None:
    """Wait until the process outside has stopped, too."""
    end = time.monotonic() + 30
    while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "T":
        assert time.monotonic() < end, "nsenter goes on"
        time.sleep(0.01)
