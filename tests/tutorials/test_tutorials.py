"""Each tutorial does what it says, run from its first command to its last by a reader of its own."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.deploy.hosts import hosts
from tests.e2e.server import Server
from tests.pages import ROOT
from tests.tutorials.page import FOLDER, TUTORIALS, blocks
from tests.tutorials.reader import Reader, work_folder


@pytest.fixture(scope="module")
def system() -> Iterator[Server]:
    """A system as `make serve` starts it."""
    with Server(ROOT / "deploy" / "small.toml", "--set", "cluster.dashboard_port=0") as running:
        yield running


def go_through(name: str, system: Server | None = None, network: str = "") -> None:
    """Do all that a tutorial says, and compare."""
    with work_folder(name) as folder, Reader(Path(folder), system, network) as reader:
        for block in blocks(FOLDER / f"{name}.md"):
            printed = reader.do(block)
            assert printed is None or block.agrees(printed), f"{block.commands}{printed}"


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in TUTORIALS if name not in ("supernodes", "hosts")])
def test_a_tutorial_with_a_system(name: str, system: Server) -> None:
    go_through(name, system)


@pytest.mark.timeout(1200)  # half a minute of a processor, which may be busy with other things
def test_supernodes() -> None:
    go_through("supernodes")


@pytest.mark.slow
@pytest.mark.timeout(1200)  # three minutes alone, five beside three busy loops, and CI may leave it less
def test_hosts() -> None:
    with hosts("head", "left", "right", "store") as made:
        go_through("hosts", network=made.network)
