"""The tutorial that needs no running system does what it says."""

from tests.e2e.shipped.test_tutorials import go_through


def test_supernodes() -> None:
    go_through("supernodes")
