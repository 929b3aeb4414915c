"""A memory server in a separate process: the operations of clients on its node."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hardware.ub.copy import checksum
from hardware.ub.process import ProcessStamp
from serving.config.kvcache import KvCacheConfig
from serving.errors import PoolError
from serving.ids import BlockHash, NodeId
from serving.kvpool.core import messages as m
from serving.kvpool.core.entry import GrantStatus, Kind, Space
from serving.kvpool.core.server_settings import ServerSettings
from serving.kvpool.live.frames import receive, send
from serving.values.pool_view import NamespaceRecord
from tests.kvpool.raw_client import SPACE, RawClient, connect, hash_of, hello
from tests.kvpool.server_process import MIB, ServerProcess, running_server, segment_folder
from tests.kvpool.waits import wait_for

KIB = 1 << 10


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with segment_folder() as segments:
        with running_server(segments, capacity_bytes=16 * MIB) as running:
            yield running
        assert list(segments.iterdir()) == [], "the segment is removed at the end"


@pytest.fixture
def client(server: ServerProcess) -> Iterator[RawClient]:
    with RawClient(server.record) as one:
        for name in ("default", "other"):
            one.ask(m.Forget(name), m.Data)
        yield one
        assert one.audit()["problems"] == []


def test_what_was_put_is_got_by_another_client(server: ServerProcess, client: RawClient) -> None:
    data = os.urandom(300 * KIB + 7)
    assert client.put(hash_of(1), data) is GrantStatus.GRANTED
    with RawClient(server.record) as reader:
        assert reader.get(hash_of(1)) == data
        assert reader.get(hash_of(2)) is None


def test_the_record_says_where_it_is(server: ServerProcess, client: RawClient) -> None:
    record = server.record
    assert (record.node, record.capacity_bytes) == ("n0", 16 * MIB)
    assert client.welcome.server == record.name
    assert client.welcome.incarnation == record.incarnation
    assert client.welcome.segment == record.segment
    assert client.welcome.generation == record.generation
    assert os.stat(record.segment).st_size >= 16 * MIB


def test_equal_hashes_are_stored_once(client: RawClient) -> None:
    assert client.put(hash_of(1), b"a" * KIB) is GrantStatus.GRANTED
    assert client.put(hash_of(1), b"a" * KIB) is GrantStatus.PRESENT
    first, second = client.reserve((hash_of(2), KIB), (hash_of(2), KIB))
    assert (first.status, second.status) == (GrantStatus.GRANTED, GrantStatus.PRESENT)
    client.ask(m.Abort((first.version,)), m.Done)
    assert client.lookup(hash_of(2)) == (None,)


def test_nothing_is_seen_before_its_commit_nor_in_another_space(client: RawClient) -> None:
    (grant,) = client.reserve((hash_of(1), KIB))
    assert client.lookup(hash_of(1)) == (None,)
    assert client.finish(grant, b"x" * KIB)
    assert client.get(hash_of(1)) == b"x" * KIB
    assert client.get(hash_of(1), space=Space("other", SPACE.layout)) is None
    assert client.get(hash_of(1), space=Space("default", "other layout")) is None


def test_a_client_that_dies_in_the_middle_of_a_put_gives_back_its_room(
    server: ServerProcess, client: RawClient
) -> None:
    dying = RawClient(server.record)
    grants = dying.reserve(*((hash_of(n), 2 * MIB) for n in range(8)))
    assert {grant.status for grant in grants} == {GrantStatus.GRANTED}
    assert client.reserve((hash_of(99), 2 * MIB))[0].status is GrantStatus.FULL
    dying.close()
    again = (hash_of(99), 2 * MIB)
    wait_for(lambda: client.reserve(again)[0].status is GrantStatus.GRANTED, "its room is given back")
    assert client.lookup(hash_of(0)) == (None,)


def test_wrong_bytes_are_removed_when_somebody_reports_them(client: RawClient) -> None:
    client.put(hash_of(1), b"right" * KIB)
    client.put(hash_of(2), b"right" * KIB)
    found = client.lookup(hash_of(1), hash_of(2))
    assert found[0] is not None
    assert found[1] is not None
    client.at(found[0].offset, 1)[0] ^= 1
    client.ask(m.Report((found[0].version, found[1].version, 12345)), m.Done)
    assert client.lookup(hash_of(1)) == (None,)
    assert client.get(hash_of(2)) == b"right" * KIB


def test_an_audit_finds_wrong_bytes_and_repairs(client: RawClient) -> None:
    for number in range(20):
        client.put(hash_of(number), os.urandom(100 * KIB))
    found = client.lookup(hash_of(7))[0]
    assert found is not None
    client.at(found.offset, found.nbytes)[5] ^= 0x80
    proof = client.audit()
    assert (proof["ok"], proof["problem_count"], proof["entries"]) == (False, 1, 20)
    assert hash_of(7).hex() in proof["problems"][0]
    assert client.audit(repair=True)["repaired"] == 1
    proof = client.audit()
    assert (proof["ok"], proof["entries"], proof["dram_bytes"]) == (True, 19, 19 * 100 * KIB)
    assert client.lookup(hash_of(7)) == (None,)


def test_another_node_reads_and_writes_through_the_link(server: ServerProcess, client: RawClient) -> None:
    data = os.urandom(m.MAX_CHUNK_BYTES + 1000)
    far = RawClient(server.record, hello(node="n1"))
    (grant,) = far.reserve((hash_of(1), len(data)))
    pieces = [
        (grant.version, start, min(m.MAX_CHUNK_BYTES, len(data) - start))
        for start in range(0, len(data), m.MAX_CHUNK_BYTES)
    ]
    for piece in pieces:
        assert far.ask(m.Write((piece,)), m.Written, data[piece[1] : piece[1] + piece[2]]).ok == (True,)
    beyond, other = (grant.version, len(data) - 1, 2), (grant.version + 1000, 0, 3)
    two = far.ask(m.Write((beyond, (grant.version, 1, 2), other)), m.Written, b"ab" + data[1:3] + b"abc")
    assert two.ok == (False, True, False), "what has no place goes nowhere, the rest into its place"
    assert "must contain its bytes" in far.ask(m.Write((pieces[0],)), m.Failed).reason
    far.ask(m.Commit(((grant.version, checksum(data)),)), m.Committed)
    assert far.ask(m.Write(((grant.version, 0, 2),)), m.Written, b"ab").ok == (False,), "it is not reserved any more"
    assert client.get(hash_of(1)) == data
    (found,) = far.lookup(hash_of(1))
    assert found is not None
    target = memoryview(bytearray(len(data)))
    for version, start, nbytes in pieces:
        assert far.ask(m.Read(((version, start, nbytes),)), m.Chunk, into=target[start:]).pieces == 1
    assert target == data
    both = far.ask(m.Read(((found.version, 5, 7), (found.version, 0, 2), (found.version, -1, 1))), m.Chunk)
    assert (both.pieces, bytes(far.payload)) == (2, data[5:12] + data[:2])
    for start, nbytes in ((0, m.MAX_CHUNK_BYTES + 1), (len(data), 1), (-1, 1), (0, -1)):
        far.ask(m.Read(((found.version, start, nbytes),)), m.Failed)
    far.ask(m.Read(((found.version + 1000, 0, 1),)), m.Failed)
    with pytest.raises(PoolError):  # the bytes contradict their length: no message can follow
        far.ask(m.Write(((found.version, 0, 5),)), m.Written, b"abc")
    far.close()
    far = RawClient(server.record, hello(node="n1"))
    assert "may hold" in far.ask(m.Hold((found.version,)), m.Failed).reason
    far.close()


def test_a_hold_outlives_the_connection_but_not_the_process(server: ServerProcess, client: RawClient) -> None:
    child = os.posix_spawn("/bin/sleep", ["sleep", "1000"], {})
    try:
        stamp = ProcessStamp.of(child)
        assert stamp is not None
        client.put(hash_of(1), b"held" * KIB, kind=Kind.MODEL)
        with RawClient(server.record, hello(process=stamp)) as holder:
            (found,) = holder.lookup(hash_of(1))
            assert found is not None
            holder.ask(m.Hold((found.version,)), m.Done)
            holder.ask(m.Hold((found.version, 4711)), m.Failed)
        assert client.stats()["holds"] == 1
        assert client.ask(m.Drop((found.version,)), m.Committed).ok == (False,)
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)
    wait_for(lambda: client.stats()["holds"] == 0, "its hold ends")
    assert client.ask(m.Drop((found.version,)), m.Committed).ok == (True,)


def test_listing_goes_page_by_page(client: RawClient) -> None:
    for number in range(25):
        client.put(hash_of(number), b"x" * KIB)
    seen: list[m.ListedEntry] = []
    while True:
        page = client.ask(m.List(seen[-1].version if seen else 0, 10), m.Listed).entries
        seen += page
        if len(page) < 10:
            break
    assert sorted(one.hash for one in seen) == [hash_of(number) for number in range(25)]
    assert [one.version for one in seen] == sorted({one.version for one in seen})
    assert all(one.in_dram and not one.on_ssd and one.nbytes == KIB and one.space == SPACE for one in seen)
    assert all(0 <= one.last_use_age_s < 60 for one in seen)


def test_namespaces_have_quotas_usage_and_an_end(client: RawClient) -> None:
    client.ask(m.SetNamespaces((NamespaceRecord("other", 4 * KIB),)), m.Done)
    other = Space("other", "layout")
    client.put(hash_of(1), b"x" * KIB)
    for number in range(4):
        assert client.put(hash_of(number), b"y" * KIB, space=other) is GrantStatus.GRANTED
    assert client.reserve((hash_of(9), 5 * KIB), space=other)[0].status in (GrantStatus.QUOTA, GrantStatus.TOO_LARGE)
    usage = client.ask(m.AskUsage(), m.Data).value
    assert usage["other"]["entries"] == 4
    assert usage["other"]["dram_bytes"] >= 4 * KIB
    assert client.ask(m.Forget("other"), m.Data).value == {"bytes": 4 * KIB, "entries": 4}
    assert client.lookup(hash_of(1), space=other) == (None,)
    assert client.get(hash_of(1)) == b"x" * KIB


def test_facts_count(client: RawClient) -> None:
    before = client.stats()
    client.put(hash_of(1), b"x" * KIB)
    client.lookup(hash_of(1), hash_of(2))
    facts = client.stats()
    for name in ("bytes_written", "bytes_found_dram"):
        assert facts["counters"][name] - before["counters"].get(name, 0) == KIB
    for name in ("hits_dram", "misses", "puts"):
        assert facts["ledger"]["counters"][name] - before["ledger"]["counters"][name] == 1
    for name in ("lookup", "reserve", "put"):
        histogram = facts["histograms"][name]
        assert sum(histogram["counts"]) == histogram["count"] > 0
        assert len(histogram["counts"]) == len(facts["bounds_s"]) + 1
    assert facts["namespaces"]["default"]["entries"] == 1
    assert facts["progress_age_s"] < 60
    assert facts["connections"] >= 1


@pytest.mark.parametrize(
    "message",
    [
        m.Reserve(SPACE, Kind.CONTEXT, ((hash_of(1), 0),)),
        m.Reserve(SPACE, Kind.CONTEXT, ((BlockHash(b"abc"), 10),)),
        m.Lookup(SPACE, (hash_of(1),) * (m.MAX_ITEMS + 1), 1.0),
        hello(),
    ],
)
def test_what_cannot_be_done_is_said_and_the_link_lives(client: RawClient, message: m.Message) -> None:
    client.ask(message, m.Failed)
    assert client.lookup(hash_of(1)) == (None,)


def test_an_odd_lease_is_the_default_one(client: RawClient) -> None:
    client.put(hash_of(1), b"x" * KIB)
    for lease_s in (float("nan"), float("inf"), -1.0, 0.0):
        assert client.ask(m.Lookup(SPACE, (hash_of(1),), lease_s), m.Looked).found[0] is not None


def test_two_hundred_clients_at_once(server: ServerProcess, client: RawClient) -> None:
    client.put(hash_of(1), b"shared" * KIB)
    socks = []
    for _ in range(200):  # each sends Hello immediately, like a client: only a few strangers may wait
        socks.append(connect(server.record))
        send(socks[-1], hello())
    assert all(isinstance(receive(sock, m.to_client)[0], m.Welcome) for sock in socks)
    for sock in socks:
        send(sock, m.Lookup(SPACE, (hash_of(1),), 1.0))
    for sock in socks:
        answer = receive(sock, m.to_client)[0]
        assert isinstance(answer, m.Looked)
        assert answer.found[0] is not None
        sock.close()


def test_settings_follow_the_configuration(tmp_path: Path) -> None:
    config = KvCacheConfig(ub_memory_mib=3, ssd_mib=5, slab_kib=512, eviction="cost", write_through=True)
    common: dict[str, Any] = {"node": NodeId("n"), "secret": "hush", "segment_folder": tmp_path, "segment_prefix": "p"}
    settings = ServerSettings.of(config, **common, ssd_folder=tmp_path)
    assert (settings.capacity_bytes, settings.ssd_bytes, settings.slab_bytes) == (3 * MIB, 5 * MIB, 512 * KIB)
    assert (settings.ssd_folder, settings.eviction, settings.write_through) == (tmp_path, "cost", True)
    assert "hush" not in repr(settings)
    assert ServerSettings.of(KvCacheConfig(), **common, ssd_folder=tmp_path).ssd_folder is None
    own = ServerSettings.of(KvCacheConfig(ssd_mib=1, ssd_path="/some/where"), **common, ssd_folder=tmp_path)
    assert own.ssd_folder == Path("/some/where")
    ledger = settings.manager(base_offset=4096, ssd_bytes=0)
    assert (ledger.base_offset, ledger.ssd_bytes, ledger.capacity_bytes) == (4096, 0, 3 * MIB)
