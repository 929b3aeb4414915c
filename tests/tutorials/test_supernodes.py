"""The tutorial that needs no running system does what it says."""

import pytest

from tests.e2e.shipped.test_tutorials import go_through


@pytest.mark.timeout(1200)  # half a minute of a processor, which may be busy with other things
def test_supernodes() -> None:
    go_through("supernodes")
