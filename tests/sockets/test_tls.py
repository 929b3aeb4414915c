"""Mutual TLS with Ray's files, on all kinds of our sockets; a peer without a certificate of the CA is refused."""

import asyncio
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from hardware.ub.copy import checksum
from hardware.ub.segment import UbSegment
from serving.errors import ConfigError, HandoffError, LinkError, PoolUnreachableError
from serving.gateway.live.pool_links import InstanceLink
from serving.ids import GatewayId, NodeId, ReplicaId
from serving.instance.live.segment_reader import SegmentPlace, SegmentReader
from serving.instance.live.segment_server import SegmentServer
from serving.kvpool.core.messages import Data, Stats
from serving.kvpool.live.server_link import ServerLink, hello_of
from serving.sockets.secrets import ClusterSecrets
from serving.sockets.tls import tls_ends, tls_files
from serving.wire import messages as m
from serving.wire.connection import Connection, Listener, verifier_of
from tests.kvpool.client_case import soon
from tests.kvpool.server_process import running_server, segment_folder
from tests.live.wire import STATUS, WELCOME
from tests.sockets.certificates import Authority
from tests.sockets.ends import is_closed

SECRETS = ClusterSecrets(("secret",))


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "tls")


def use(monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def segment(tmp_path: Path) -> Iterator[tuple[SegmentServer, SegmentPlace, memoryview]]:
    """A served segment with contents."""
    with UbSegment.create(tmp_path / "ub-tls", 4 << 20, max_regions=1) as segment:
        region = segment.allocate(3 << 20, owner="prefill")
        view = segment.view(region)
        view[:] = bytes(range(256)) * (len(view) // 256)
        server = SegmentServer(segment, SECRETS)
        host, port = server.start("127.0.0.1")
        yield server, SegmentPlace(host, port, str(segment.path), region.generation), view
        server.stop(30.0)
        segment.remove()


def assert_read(place: SegmentPlace, view: memoryview) -> None:
    reader, target = SegmentReader(SECRETS), memoryview(bytearray(len(view)))
    begin = UbSegment.attach(place.path).regions()[0].offset
    try:
        for _ in range(2):
            assert reader.read(place, [(begin, len(view))], [target]) == [checksum(view)]
    finally:
        reader.close()


def test_a_segment_is_read_under_tls(
    segment: tuple[SegmentServer, SegmentPlace, memoryview], authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, authority.issue("127.0.0.1"))
    assert_read(*segment[1:])


def test_who_speaks_no_tls_is_not_taken(
    segment: tuple[SegmentServer, SegmentPlace, memoryview], authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, authority.issue("127.0.0.1"))
    with socket.create_connection(segment[0].address) as plain:
        plain.settimeout(60.0)
        plain.sendall(b"\0\0\0\5hello, is there anyone?" * 10)
        assert is_closed(plain)


@pytest.mark.parametrize("what", ["expired", "of another authority"])
def test_a_certificate_that_does_not_count_is_refused_with_a_reason(
    segment: tuple[SegmentServer, SegmentPlace, memoryview],
    authority: Authority,
    monkeypatch: pytest.MonkeyPatch,
    what: str,
    tmp_path: Path,
) -> None:
    use(monkeypatch, authority.issue("127.0.0.1", days=-1.0 if what == "expired" else 1.0))
    if what != "expired":
        monkeypatch.setenv("RAY_TLS_CA_CERT", Authority(tmp_path / "another").path)
    with pytest.raises(HandoffError, match=r"no TLS with 127\.0\.0\.1:.*certificate verify failed"):
        assert_read(*segment[1:])


def test_renewed_files_count_without_a_restart(
    segment: tuple[SegmentServer, SegmentPlace, memoryview], authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = authority.issue("127.0.0.1", days=-1.0)
    use(monkeypatch, old)
    with pytest.raises(HandoffError):
        assert_read(*segment[1:])
    fresh = authority.issue("127.0.0.9")
    for name in ("RAY_TLS_SERVER_KEY", "RAY_TLS_SERVER_CERT"):
        shutil.copy(fresh[name], old[name])
    assert_read(*segment[1:])


def test_a_memory_server_speaks_tls(authority: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, authority.issue("127.0.0.1"))
    with segment_folder() as folder, running_server(folder) as server:
        link = ServerLink(server.record, hello_of("test", NodeId("far"), SECRETS))
        for _ in range(3):
            assert link.ask(Data, Stats(), soon()).value["connections"] == 1
        link.close()
        monkeypatch.delenv("RAY_USE_TLS")
        plain = ServerLink(server.record, hello_of("test", NodeId("far"), SECRETS))
        with pytest.raises(PoolUnreachableError):
            plain.ask(Data, Stats(), soon())


@pytest.mark.asyncio
async def test_a_link_speaks_tls(authority: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, authority.issue("127.0.0.1"))

    def greet(connection: Connection, body: bytes) -> None:
        assert isinstance(m.decode_to_instance(body), m.GatewayHello)
        connection.send(WELCOME)
        connection.send(STATUS)

    def accepted() -> Connection:
        connection = Connection(greet, lambda *_: None)
        connection.verify(verifier_of(m.LINK_CHANNEL, SECRETS), lambda: None)
        return connection

    listener = Listener(accepted)
    host, port = listener.start("127.0.0.1")
    link = InstanceLink(ReplicaId("d#1"), "i", lambda *_: None, lambda *_: None, lambda *_: None)
    await link.connect(host, port, GatewayId("g"), SECRETS)
    assert link.up
    link.close("done")
    monkeypatch.setenv("RAY_TLS_CA_CERT", Authority(authority.folder, "other").path)
    strange = InstanceLink(ReplicaId("d#1"), "i", lambda *_: None, lambda *_: None, lambda *_: None)
    with pytest.raises(LinkError, match="certificate verify failed"):
        await strange.connect(host, port, GatewayId("g"), SECRETS)
    await listener.stop()
    await asyncio.sleep(0)


def test_variables_that_are_missing_or_name_no_file_are_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert tls_files({}) is None
    assert tls_files({"RAY_USE_TLS": "0", "RAY_TLS_CA_CERT": "/x"}) is None
    with pytest.raises(ConfigError, match="RAY_TLS_SERVER_KEY, RAY_TLS_CA_CERT: name the PEM files"):
        tls_files({"RAY_USE_TLS": "1", "RAY_TLS_SERVER_CERT": "/x"})
    for name in ("RAY_TLS_SERVER_CERT", "RAY_TLS_SERVER_KEY", "RAY_TLS_CA_CERT"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    monkeypatch.setenv("RAY_USE_TLS", "1")
    with pytest.raises(ConfigError, match="cannot use the TLS files"):
        tls_ends()
    (tmp_path / "none").write_text("no certificate")
    with pytest.raises(ConfigError, match="cannot use the TLS files"):
        tls_ends()
