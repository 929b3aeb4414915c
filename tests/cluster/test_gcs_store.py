"""The store in Ray's control store: its contents, and deadlines of calls while it is unreachable."""

from collections.abc import Iterator

import pytest
import ray

from serving.cluster.gcs_store import LARGEST_VALUE_BYTES, SPACE, GcsStore
from serving.cluster.identity import (
    SALT_KEY,
    SECRETS_KEY,
    found_identity,
    read_secrets,
    read_session,
    write_secrets,
)
from serving.errors import SilentError
from tests.cluster.gcs_fake import FakeGcs


@pytest.fixture
def gcs() -> Iterator[FakeGcs]:
    """Store whose waiting threads end with the test."""
    fake = FakeGcs()
    yield fake
    fake.back.set()


def store_of(gcs: FakeGcs, deadline_s: float = 60.0) -> GcsStore:
    """A store on it."""
    return GcsStore(lambda: gcs, deadline_s)


def test_values_are_kept_in_a_namespace_of_ours(gcs: FakeGcs) -> None:
    gcs.kept[b"ray", b"a"] = b"theirs"
    store = store_of(gcs)
    assert store.get("a") is None
    store.put("a", b"1")
    store.put("a", b"2")
    assert store.get("a") == b"2"
    assert gcs.kept == {(b"ray", b"a"): b"theirs", (SPACE, b"a"): b"2"}


def test_put_if_absent_keeps_the_first_value(gcs: FakeGcs) -> None:
    store = store_of(gcs)
    assert store.put_if_absent("a", b"first") == b"first"
    assert store.put_if_absent("a", b"second") == b"first"
    assert store.get("a") == b"first"


def test_keys_are_listed_by_prefix_and_deleted_one_by_one(gcs: FakeGcs) -> None:
    store = store_of(gcs)
    for key in ("nodes/2", "nodes/1", "board"):
        store.put(key, b"")
    assert store.keys("nodes/") == ["nodes/1", "nodes/2"]
    assert store.delete("nodes/1")
    assert not store.delete("nodes/1")
    assert store.keys() == ["board", "nodes/2"]


def test_a_value_that_the_control_store_should_not_hold_is_refused(gcs: FakeGcs) -> None:
    with pytest.raises(ValueError, match="takes"):
        store_of(gcs).put("a", bytes(LARGEST_VALUE_BYTES + 1))
    assert not gcs.kept


def test_silence_ends_at_the_deadline_and_costs_one_thread(gcs: FakeGcs) -> None:
    store = store_of(gcs, deadline_s=0.02)
    gcs.back.clear()
    for _ in range(5):
        with pytest.raises(SilentError, match="does not answer"):
            store.get("a")
    assert gcs.waiting == 1


def test_a_deadline_of_rays_is_silence_too(gcs: FakeGcs) -> None:
    store = store_of(gcs)
    gcs.error = ray.exceptions.RpcError("Deadline Exceeded")
    with pytest.raises(SilentError):
        store.put("a", b"1")
    gcs.error = None
    store.put("a", b"1")
    assert store.get("a") == b"1"


def test_an_identity_is_made_once(gcs: FakeGcs) -> None:
    store = store_of(gcs)
    first = found_identity(store, session="abc123")
    assert first.session == "abc123"
    assert len(first.secrets) == 1
    assert len(first.secrets[0]) == 64
    assert len(first.pool_salt) == 32
    assert found_identity(store, session="other") == first
    assert read_session(store) == "abc123"
    assert first.secrets[0] not in repr(first)


def test_a_salt_of_the_configuration_comes_before_the_kept_one(gcs: FakeGcs) -> None:
    store = store_of(gcs)
    made = found_identity(store)
    named = found_identity(store, salt=b"named")
    assert named.pool_salt == b"named" != made.pool_salt
    assert found_identity(store).pool_salt == b"named", "a pool that was filled with it stays readable"
    assert gcs.kept[SPACE, SALT_KEY.encode()] == b"named"


def test_secrets_rotate(gcs: FakeGcs) -> None:
    store = store_of(gcs)
    assert read_secrets(store) == ()
    old = found_identity(store).secrets[0]
    write_secrets(store, ("new", old))
    assert found_identity(store).secrets == ("new", old)
    assert SECRETS_KEY in store.keys()
