"""Values that outlive their process: set immediately, stored soon, after any outage of the store."""

import logging

import pytest

from serving.cluster.gcs_store import LARGEST_VALUE_BYTES, GcsStore, KeptValues
from tests.cluster.gcs_fake import FakeGcs


def kept(gcs: FakeGcs) -> KeptValues:
    """Values of the prefix `p/`."""
    return KeptValues(GcsStore(lambda: gcs, deadline_s=0.05), "p/", retry_s=0.01)


def test_a_successor_reads_what_was_set() -> None:
    gcs = FakeGcs()
    values = kept(gcs)
    for key, value in (("a", b"1"), ("a", b"2"), ("b", b"3"), ("c", b"4"), ("c", None)):
        values.set(key, value)
    assert values.keys() == ["a", "b"]
    assert values.settled(30.0)
    again = kept(gcs)
    assert {key: again.get(key) for key in again.keys()} == {"a": b"2", "b": b"3"}
    assert again.keys("b") == ["b"]
    assert again.get("c") is None
    assert KeptValues(GcsStore(lambda: gcs), "q/").keys() == []


def test_nobody_waits_for_a_store_that_is_away_and_it_gets_the_newest(caplog: pytest.LogCaptureFixture) -> None:
    gcs = FakeGcs()
    values = kept(gcs)
    with caplog.at_level(logging.WARNING):
        gcs.back.clear()
        values.set("a", b"old")
        assert not values.settled(0.3)
        values.set("a", b"new")
        values.set("b", b"1")
        assert values.get("a") == b"new"
        gcs.back.set()
        assert values.settled(30.0)
    assert "written when it is available again" in caplog.text
    assert kept(gcs).get("a") == b"new"
    assert kept(gcs).get("b") == b"1"


def test_what_is_too_large_does_not_keep_others_from_being_kept() -> None:
    gcs = FakeGcs()
    values = kept(gcs)
    values.set("a", bytes(LARGEST_VALUE_BYTES + 1))
    values.set("b", b"1")
    assert values.settled(30.0)
    assert kept(gcs).keys() == ["b"]


def test_without_a_store_there_is_memory() -> None:
    values = KeptValues()
    values.set("a", b"1")
    assert values.get("a") == b"1"
    assert values.settled(0.0)
