"""Packets between two hosts: without TLS none contains the secret, with TLS none contains prompts or KV blocks
either.
"""

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from serving.ids import SequenceId
from serving.values.orders import Add
from serving.values.sequence import SamplingParams, SequenceSpec
from serving.wire import messages as m
from tests.deploy.hosts import Hosts, hosts
from tests.deploy.talk import KV_BYTES, PROMPT, SECRET
from tests.sockets.certificates import Authority

SAME = "tests/deploy/test_places.py::test_with_tls_neither_token_nor_secret_nor_prompt_is_in_a_packet"
pytestmark = [pytest.mark.slow, pytest.mark.nightly(SAME)]

ROOT = Path(__file__).resolve().parents[2]
PROMPT_BYTES = m.encode(Add(SequenceSpec(SequenceId("s"), PROMPT, SamplingParams())))[60:160]
PATIENCE_S = 120.0


@pytest.fixture(scope="module")
def network() -> Iterator[Hosts]:
    with hosts("left", "right") as up:
        yield up


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder that hosts see, since they have a separate /tmp."""
    folder = Path(tempfile.mkdtemp(prefix="capture-", dir="/var/tmp"))
    yield folder
    shutil.rmtree(folder)


def talk(network: Hosts, host: str, *arguments: str, variables: dict[str, str]) -> "subprocess.Popen[str]":
    """A process of `tests.deploy.talk` in a host."""
    told = [f"{name}={value}" for name, value in variables.items()]
    command = network.command(host, "env", f"PYTHONPATH={ROOT}", *told, sys.executable, "-m", "tests.deploy.talk")
    pipe = subprocess.PIPE
    return subprocess.Popen([*command, *arguments], stdin=pipe, stdout=pipe, stderr=pipe, text=True, cwd=ROOT)


def captured(network: Hosts, folder: Path, variables: dict[str, str]) -> bytes:
    """All network packets while the hosts talked."""
    path = folder / "packets"
    capture = talk(network, "right", "capture", str(path), variables={})
    left = talk(network, "left", "listen", network.addresses["left"], variables=variables)
    assert capture.stdout is not None
    assert left.stdout is not None
    assert capture.stdout.readline() == "ready\n"
    line = left.stdout.readline()
    right = talk(network, "right", "connect", variables=variables)
    out, errors = right.communicate(line, timeout=PATIENCE_S)
    left.communicate("", timeout=PATIENCE_S)
    capture.communicate("", timeout=PATIENCE_S)
    assert out == "done\n", errors
    return path.read_bytes()


def test_without_tls_the_secret_is_in_no_packet(network: Hosts, shared: Path) -> None:
    packets = captured(network, shared, {})
    assert SECRET.encode() not in packets
    assert KV_BYTES in packets, "this capture sees what is not hidden"
    assert PROMPT_BYTES in packets


def test_with_tls_neither_secret_nor_prompt_nor_block_is(network: Hosts, shared: Path) -> None:
    packets = captured(network, shared, Authority(shared).issue("host"))
    assert len(packets) > 3 * (64 << 10), "everything went over the network"
    for hidden in (SECRET.encode(), KV_BYTES, PROMPT_BYTES):
        assert hidden not in packets
