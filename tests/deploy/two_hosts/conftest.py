"""One Ray on two hosts for the whole folder; each test deploys on it, and removes its deployment."""

from collections.abc import Iterator

import pytest

from tests.deploy.ray_hosts import RayHosts, ray_hosts


@pytest.fixture(scope="package")
def two_hosts() -> Iterator[RayHosts]:
    """A Ray on the hosts `left` (its head) and `right`, 8 NPUs and 1 GiB of UB memory each."""
    with ray_hosts("left", "right") as started:
        yield started
