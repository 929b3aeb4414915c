"""The tutorial that needs no running system works as printed."""

import pytest

from tests.tutorials.reader import go_through


@pytest.mark.nightly("tests/e2e/shipped/test_tutorials.py::test_the_first_tutorial")
@pytest.mark.timeout(1200)  # half a minute of a processor, which may be busy with other things
def test_supernodes() -> None:
    go_through("supernodes")
