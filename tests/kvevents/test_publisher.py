"""The publisher with real sockets: subscribers that come late, miss batches, and survive the publisher."""

import contextlib
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq

from serving.config.kv_events import KvEventsConfig
from serving.errors import ConfigError
from serving.kvevents.live.publisher import EventPublisher, EventSource
from serving.kvpool.core.server_settings import PoolEvents
from serving.values.kv_changes import CPU, GPU, STORAGE, BlocksRemoved
from tests.kvevents.cases import free_port, named, somewhere, stored
from tests.kvevents.zmq_subscriber import ZmqSubscriber
from tests.kvpool.client_case import chain, entries_of, filled, put


@contextlib.contextmanager
def publishing(config: KvEventsConfig, **source: Any) -> Iterator[EventPublisher]:
    publisher = EventPublisher(config, EventSource("decode#1", "m", 2, **source))
    publisher.start()
    try:
        yield publisher
    finally:
        publisher.stop()
        publisher.stop()


def test_a_subscriber_hears_events_and_closes_every_gap() -> None:
    config = somewhere(buffer_batches=4)
    with publishing(config) as publisher, ZmqSubscriber(config.endpoint, config.replay) as early:
        publisher.changes.note(stored(1, 3))
        early.until(lambda index: index.media[GPU] == {1, 2, 3})
        assert early.topics == {b"kv@decode#1@m"}
        assert publisher.facts()["listeners"] == 1
        publisher.changes.note(stored(9))
        early.lose()
        publisher.changes.note(BlocksRemoved(GPU, [named(2)]))
        early.until(lambda index: index.media[GPU] == {1, 3, 9})
        with ZmqSubscriber(config.endpoint, config.replay) as late:
            assert late.until(lambda index: index.media[GPU] == {1, 3, 9}).tokens[9] == (None, (7, 7))


def test_without_a_listener_nothing_is_packed_and_nothing_is_lost() -> None:
    config = somewhere()
    with publishing(config) as publisher:
        for number in range(100):
            publisher.changes.note(stored(number))
        with ZmqSubscriber(config.endpoint, config.replay) as late:
            late.until(lambda index: index.media[GPU] == set(range(100)))
        assert publisher.facts()["batches"] <= 102


def test_a_successor_at_the_same_address_voids_what_was_there() -> None:
    config = somewhere()
    with ZmqSubscriber(config.endpoint, config.replay) as follower:
        with publishing(config) as publisher:
            publisher.changes.note(stored(1, 3))
            follower.until(lambda index: index.media[GPU] == {1, 2, 3})
        with publishing(config) as publisher:
            publisher.changes.note(stored(8))
            follower.until(lambda index: index.media[GPU] == {8})


def test_lost_changes_begin_again_with_what_the_ledger_has() -> None:
    config, held = somewhere(max_waiting=3), [stored(5)]

    def dump() -> list[Any]:
        publisher.changes.begin_again()
        return held

    publisher = EventPublisher(config, EventSource("pool", "m", 2, dump=dump))
    for number in range(9):
        publisher.changes.note(stored(20 + number))
    publisher.start()
    with ZmqSubscriber(config.endpoint, config.replay) as follower:
        follower.until(lambda index: index.media[GPU] == {5})
    publisher.stop()


def test_lost_changes_of_a_ledger_that_cannot_tell() -> None:
    config = somewhere(max_waiting=1)
    publisher = EventPublisher(config, EventSource("decode#1", "m", 2))
    publisher.changes.note(stored(1))
    publisher.changes.note(stored(2))
    publisher.start()
    with ZmqSubscriber(config.endpoint, config.replay) as follower:
        follower.until(lambda index: index.gaps > 0)
        assert not follower.index.media[GPU]
        publisher.changes.note(stored(3))
        follower.until(lambda index: index.media[GPU] == {3})
    publisher.stop()


def test_a_strange_request_for_replay_gets_the_end_alone() -> None:
    config = somewhere()
    with publishing(config), zmq.Context() as context, context.socket(zmq.REQ) as client:
        client.connect(config.replay)
        client.send(b"from the start, please")
        assert client.poll(10_000)
        assert client.recv_multipart() == [(-1).to_bytes(8, "big", signed=True), b""]


def test_each_publisher_of_a_host_has_its_own_ports_and_a_full_range_is_refused() -> None:
    base = free_port()
    config = somewhere(endpoint=f"tcp://127.0.0.1:{base}", replay="", publishers=2)
    with contextlib.ExitStack() as stack:
        taken = {stack.enter_context(publishing(config)).endpoint for _ in range(2)}
        assert taken == {f"tcp://127.0.0.1:{base}", f"tcp://127.0.0.1:{base + 1}"}
        with pytest.raises(ConfigError, match=r"all 2 ports from .* on are in use"):
            EventPublisher(config, EventSource("decode#3", "m", 2))


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this machine has no IPv6")
def test_an_address_of_ipv6() -> None:
    config = somewhere(endpoint=f"tcp://[::1]:{free_port()}", replay="")
    with publishing(config) as publisher:
        assert publisher.endpoint == config.endpoint


def test_an_address_of_another_machine_is_refused() -> None:
    config = somewhere(endpoint="tcp://192.0.2.1:5557", allow_remote=True)
    with pytest.raises(ConfigError, match=r"tcp://192\.0\.2\.1:5557 cannot be bound"):
        EventPublisher(config, EventSource("decode#1", "m", 2))


def test_a_memory_servers_list_is_known_even_after_a_kill(tmp_path: Path) -> None:
    config = somewhere(hashes="bytes")
    events = PoolEvents(config, "m", 16, 7)
    with filled(1, 12, ssd_folder=tmp_path, ssd_bytes=1 << 24, write_through=True, events=events) as scene:
        pool, client, hashes = scene
        with ZmqSubscriber(config.endpoint, config.replay) as follower:
            follower.until(lambda index: index.media[CPU] == index.media[STORAGE] == set(hashes))
            assert follower.topics == {b"kv@pool@m"}
            pool.kill(0)
            pool.replace(0)
            put(client, chain(3, "after"))
            index = follower.until(lambda index: index.media[CPU] >= set(chain(3, "after")))
            follower.until(lambda index: index.media[STORAGE] >= set(chain(3, "after")))
            there = entries_of(client, "kv-0")
            assert index.media[CPU] == {one.hash for one in there if one.in_dram}
            assert index.media[STORAGE] == {one.hash for one in there if one.on_ssd}


def test_without_its_library_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "zmq", None)
    with pytest.raises(ConfigError, match=r"needs pyzmq: pip install '\.\[events\]'"):
        EventPublisher(somewhere(), EventSource("decode#1", "m", 2))


def test_a_publisher_that_fails_ends_alone_and_collects_no_more(caplog: pytest.LogCaptureFixture) -> None:
    def dump() -> list[Any]:
        raise RuntimeError("a bug")

    publisher = EventPublisher(somewhere(max_waiting=1), EventSource("pool", "m", 2, dump=dump))
    for number in range(3):
        publisher.changes.note(stored(number))
    publisher.start()
    publisher.stop()
    assert publisher.changes.lost
    assert "KV events are no longer published" in caplog.text


def test_one_that_was_never_started_gives_its_ports_back() -> None:
    config = somewhere()
    EventPublisher(config, EventSource("decode#1", "m", 2)).stop()
    with publishing(config) as publisher:
        assert publisher.endpoint == config.endpoint
