"""Every tutorial works as printed, run from its first command to its last in a separate reader process."""

import pytest

from tests.deploy.hosts import hosts
from tests.e2e.server import Server
from tests.tutorials.page import TUTORIALS
from tests.tutorials.reader import go_through

pytestmark = pytest.mark.slow

OTHERS = [name for name in TUTORIALS if name not in ("serve", "supernodes", "hosts")]


def test_the_first_tutorial(server: Server) -> None:
    go_through("serve", server)


@pytest.mark.nightly("tests/e2e/shipped/test_tutorials.py::test_the_first_tutorial")
@pytest.mark.parametrize("name", OTHERS)
def test_a_tutorial(name: str, server: Server) -> None:
    go_through(name, server)


@pytest.mark.nightly("tests/deploy/test_places.py::test_two_upgrades_under_load")
@pytest.mark.timeout(1200)  # three minutes alone, five next to three busy loops
def test_hosts() -> None:
    with hosts("head", "left", "right", "store") as made:
        go_through("hosts", network=made.network)
