"""One deployment at a time: the next one waits and names the current one, but not for ever for a dead one."""

import msgspec
import pytest

from serving.cluster.gcs_store import GcsStore
from serving.errors import SilentError
from serving.launch.deployment_lease import LEASE_S, PREFIX, TELL_S, DeploymentClaim, DeploymentLease, LeaseWatch
from tests.cluster.gcs_fake import FakeGcs

CLAIM = DeploymentClaim("a", "ann@left (process 7)", "deploys configuration abc", "decode, 2 of 3")


@pytest.fixture
def store() -> GcsStore:
    gcs = FakeGcs()
    return GcsStore(lambda: gcs)


def kept(store: GcsStore) -> dict[str, DeploymentClaim]:
    return {key: msgspec.json.decode(store.get(key) or b"", type=DeploymentClaim) for key in store.keys(PREFIX)}


def refused(_: object) -> None:
    pytest.fail("nothing to wait for")


def test_a_claim_is_free_when_it_has_ended_or_is_not_renewed() -> None:
    watch = LeaseWatch()
    assert watch.free(None, 0.0)
    assert watch.free(msgspec.structs.replace(CLAIM, ended=True), 0.0)
    assert not watch.free(CLAIM, 0.0)
    renewed = msgspec.structs.replace(CLAIM, renewals=1)
    assert not watch.free(renewed, LEASE_S)
    assert not watch.free(renewed, 2 * LEASE_S - 0.1)
    watch.silent()
    assert not watch.free(renewed, 3 * LEASE_S), "the holder could not reach the store either"
    assert watch.free(renewed, 4 * LEASE_S)
    assert watch.lapsed() == f"taking over: {renewed} has not been heard of for 30 s"


def test_a_wait_is_reported_with_author_and_stage() -> None:
    watch = LeaseWatch()
    assert watch.line(0.0) is None
    watch.free(CLAIM, 0.0)
    line = "waiting for another deployment to end: ann@left (process 7) deploys configuration abc (decode, 2 of 3)"
    assert [watch.line(now) for now in (0.0, TELL_S - 1, TELL_S)] == [line, None, line]
    watch.free(msgspec.structs.replace(CLAIM, stage="gateway, 3 of 3"), TELL_S + 1)
    assert "(gateway, 3 of 3)" in str(watch.line(TELL_S + 1))


def test_the_second_waits_until_the_first_has_ended(store: GcsStore) -> None:
    said: list[str] = []
    first = DeploymentLease(store, "deploys configuration abc", refused, pause=refused)

    def pause(_: float) -> None:
        first.__exit__(None, None, None)

    with first:
        assert first.advance("decode, 1 of 2")
        with DeploymentLease(store, "deploys configuration def", said.append, pause=pause) as second:
            assert not first.advance("gateway, 2 of 2"), "it no longer holds the lease"
            assert second.advance("decode, 1 of 1")
    assert [line.partition(") ")[2] for line in said] == ["deploys configuration abc (decode, 1 of 2)"]
    (claim,) = kept(store).values()
    assert (claim.work, claim.stage, claim.ended) == ("deploys configuration def", "decode, 1 of 1", True)


def test_a_deployer_that_died_is_replaced_and_a_sleeper_that_wakes_is_stopped(store: GcsStore) -> None:
    said: list[str] = []
    dead = DeploymentLease(store, "deploys configuration abc", refused, pause=refused)
    now = [0.0]
    with dead:
        with DeploymentLease(store, "takes it away", said.append, lambda: now[0], lambda s: now.insert(0, now[0] + s)):
            assert not dead.renew()
        assert now[0] == LEASE_S
    assert said[-1].startswith("taking over: ")
    assert [claim.work for claim in kept(store).values()] == ["takes it away"]


def test_a_claim_made_with_an_old_number_does_not_hold(store: GcsStore) -> None:
    """Between two polls of a slow deployer another one started and finished, and its number is free again."""

    class Slow(GcsStore):
        """Another deployer claims before its first claim."""

        def put_if_absent(self, key: str, value: bytes) -> bytes:
            if not stale:
                stale.append(key)
                store.put(f"{PREFIX}000000002", msgspec.json.encode(CLAIM))
            return super().put_if_absent(key, value)

    stale: list[str] = []
    gcs = FakeGcs()
    store = Slow(lambda: gcs)

    def pause(_: float) -> None:
        store.put(f"{PREFIX}000000002", msgspec.json.encode(msgspec.structs.replace(CLAIM, ended=True)))

    with DeploymentLease(store, "deploys", lambda _: None, pause=pause):
        assert list(kept(store)) == [f"{PREFIX}000000003"]


def test_what_down_has_deleted_is_not_written_again(store: GcsStore) -> None:
    with DeploymentLease(store, "takes it away", refused) as lease:
        for key in store.keys():
            store.delete(key)
        assert not lease.advance("never")
    assert store.keys() == []


def test_a_store_that_never_answers_is_no_wait() -> None:
    gcs = FakeGcs()
    gcs.back.clear()
    with pytest.raises(SilentError):
        DeploymentLease(GcsStore(lambda: gcs, 0.01), "deploys", refused).__enter__()
    gcs.back.set()


def test_a_claim_that_cannot_be_read_keeps_nobody_out(store: GcsStore) -> None:
    store.put(f"{PREFIX}000000001", b"\xff")
    with DeploymentLease(store, "deploys", refused, pause=refused):
        assert list(kept(store)) == [f"{PREFIX}000000002"]
