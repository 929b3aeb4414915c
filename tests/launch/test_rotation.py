"""Rotation takes its turn among deployments: of two at once, the later would drop the secret of the other."""

import pytest

from serving.cluster.gcs_store import GcsStore
from serving.cluster.identity import found_identity, read_secrets
from serving.errors import ConfigError
from serving.launch.deployment_lease import PREFIX
from serving.launch.existing import rotated
from tests.cluster.gcs_fake import FakeGcs


def test_a_rotation_holds_the_lease_and_ends_its_claim() -> None:
    gcs = FakeGcs()
    store = GcsStore(lambda: gcs)
    with pytest.raises(ConfigError, match="no system runs on this Ray"):
        rotated(store)
    (old,) = found_identity(store).secrets
    assert rotated(store) == 2
    new, kept = read_secrets(store)
    assert kept == old != new
    (key,) = store.keys(PREFIX)
    claim = store.get(key) or b""
    assert b"rotates the secret" in claim
    assert b'"ended":true' in claim
    assert rotated(store, forget_old=True) == 1
