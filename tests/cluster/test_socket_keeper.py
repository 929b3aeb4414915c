"""Rotation of secrets while processes run, and hosts that join after the first replicas."""

import asyncio
import logging
from collections.abc import Iterator

import pytest

from serving.cluster.gcs_store import GcsStore
from serving.cluster.identity import SECRETS_KEY, SocketKeeper, found_identity, read_secrets
from serving.cluster.nodes import LOOPBACK
from serving.errors import ConfigError, ProofError
from serving.launch.existing import rotated
from serving.sockets.proof import Channel, Prover, Verifier
from serving.sockets.secrets import ClusterSecrets
from tests.cluster.gcs_fake import FakeGcs

CHANNEL = Channel("pool", 2, frozenset({"client"}))


@pytest.fixture
def gcs() -> Iterator[FakeGcs]:
    """Control store whose waiting threads end with the test."""
    fake = FakeGcs()
    yield fake
    fake.back.set()


def connect(client: ClusterSecrets, server: ClusterSecrets) -> None:
    """Run a handshake."""
    prover, verifier = Prover(CHANNEL, "client", client), Verifier(CHANNEL, server)
    verifier.on_frame(prover.answer(verifier.on_frame(prover.opening)))
    assert verifier.proved


def test_a_secret_is_rotated_while_connections_go_on(gcs: FakeGcs) -> None:
    store = GcsStore(lambda: gcs, 60.0)
    first = found_identity(store).secrets[0]
    keepers = [SocketKeeper(first, store, lambda: LOOPBACK) for _ in range(2)]
    early, late = (keeper.secrets for keeper in keepers)
    assert rotated(store) == 2
    assert (len(read_secrets(store)), read_secrets(store)[1]) == (2, first)
    asyncio.run(keepers[0].refresh())
    for client, server in ((early, late), (late, early), (early, early)):
        connect(client, server)
    asyncio.run(keepers[1].refresh())
    assert rotated(store, forget_old=True) == 1
    asyncio.run(keepers[0].refresh())
    connect(late, early)
    with pytest.raises(ProofError, match="wrong secret"):
        connect(ClusterSecrets((first,)), early)
    replacement = SocketKeeper(first, store, lambda: LOOPBACK)  # Serve starts it with what it was deployed with
    asyncio.run(replacement.refresh())
    connect(replacement.secrets, early)


def test_without_a_system_there_is_nothing_to_rotate(gcs: FakeGcs) -> None:
    store = GcsStore(lambda: gcs, 60.0)
    with pytest.raises(ConfigError, match="no system runs on this Ray"):
        rotated(store)
    keeper = SocketKeeper("own", store, lambda: LOOPBACK)
    asyncio.run(keeper.refresh())
    connect(keeper.secrets, ClusterSecrets(("own",)))
    found_identity(store)
    store.delete(SECRETS_KEY)
    asyncio.run(keeper.refresh())
    connect(keeper.secrets, ClusterSecrets(("own",)))


def test_a_control_store_that_is_away_changes_nothing(gcs: FakeGcs, caplog: pytest.LogCaptureFixture) -> None:
    gcs.back.clear()
    keeper = SocketKeeper("own", GcsStore(lambda: gcs, 0.02), lambda: LOOPBACK)
    asyncio.run(keeper.refresh())
    assert "secrets may be outdated" in caplog.text
    connect(keeper.secrets, ClusterSecrets(("own",)))


def test_a_process_moves_when_a_second_host_comes_and_goes_on_when_it_cannot(
    gcs: FakeGcs, caplog: pytest.LogCaptureFixture
) -> None:
    hosts: Iterator[str | Exception] = iter([LOOPBACK, RuntimeError("away"), "10.0.0.7", "10.0.0.7"])

    def host() -> str:
        found = next(hosts, "10.0.0.7")
        if isinstance(found, Exception):
            raise found
        return found

    async def scene() -> list[str]:
        moved: list[str] = []
        enough = asyncio.Event()

        def move(address: str) -> None:
            moved.append(address)
            if len(moved) == 1:
                raise ConfigError("every port of the range is taken")
            enough.set()

        keeper = SocketKeeper("s", GcsStore(lambda: gcs, 60.0), host)
        keeper.start(move, period_s=0.001)
        await asyncio.wait_for(enough.wait(), 60.0)
        keeper.stop()
        return moved

    with caplog.at_level(logging.WARNING):
        assert asyncio.run(scene())[:2] == ["10.0.0.7", "10.0.0.7"]
    assert "other hosts cannot reach this process: every port of the range is taken" in caplog.text
