"""The thread that publishes one ledger's KV events over ZeroMQ.

    ledger's thread ──KvChanges──► this thread ──► XPUB [topic, number, batch]     all subscribers
                                       ▲   └─────► ROUTER [number, batch] ...      one that missed some

The ledger's thread only appends to a queue; this one polls it every few milliseconds, so that it costs the ledger no
wake-up. Subscribers connect with SUB sockets; XPUB reports arrivals, and whether there is any: without one no event is
encoded. A replay request is 8 bytes, the first number requested; the response ends with the number -1, as in vLLM.
"""

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from serving.config.kv_events import KvEventsConfig
from serving.errors import ConfigError
from serving.kvevents.core.event_form import EventForm
from serving.kvevents.core.event_log import Batch, KvEventLog
from serving.values.kv_changes import KvChange, KvChanges

logger = logging.getLogger(__name__)

PERIOD_S = 0.02
"""How often the queue is polled [s]; also the longest delay of an event."""
CHANGES_AT_ONCE = 4096
"""Changes published before requests for replay get their turn."""
STOP_S = 2.0
MOST_UNSENT = 1000
"""Batches that wait for one slow subscriber; further ones are dropped for it, and it requests a replay."""
_END = (-1).to_bytes(8, "big", signed=True)


@dataclass(frozen=True, slots=True)
class EventSource:
    """Identity of a publisher, and its ledger.

    Args:
        name: of the instance, or `pool`; the topic is `kv@<name>@<model>`.
        rank: distinguishes publishers of the same name.
        dump: after changes were lost: calls `KvChanges.begin_again` while its ledger cannot change, and returns
            everything that is there; None = the ledger cannot tell, so what it has by then stays unknown.
    """

    name: str
    model: str
    block_tokens: int
    rank: int = 0
    dump: Callable[[], list[KvChange]] | None = None


class EventPublisher:
    """Publishes what is noted in `changes`. `start` once, `stop` once."""

    def __init__(self, config: KvEventsConfig, source: EventSource) -> None:
        """
        Raises: ConfigError if pyzmq is not installed, or no port is free.
        Effects: binds the sockets.
        """
        self.changes = KvChanges(config.namespaces, config.max_waiting)
        """Where the ledger notes its changes."""
        form = EventForm(config.form, config.hashes, source.block_tokens, source.rank)
        # Numbers rise from one process to the next at the same address: 65 batches per millisecond of its life.
        self._log = KvEventLog(form, config.buffer_batches, int(time.time() * 1000) << 16)
        self._source = source
        self._topic = f"kv@{source.name}@{source.model}".encode()
        self._zmq, self._context = _new_context()
        self._events, self._replays, self.endpoint, self.replay = self._bind(config)
        self._listeners = 0
        self._sent = 0
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kv-events", daemon=True)

    def start(self) -> None:
        """Start to publish."""
        self._thread.start()

    def stop(self) -> None:
        """Publish what waits, and close the sockets. Twice is allowed."""
        self._stopping.set()
        if self._thread.ident is None:
            self._close()  # it was never started
        elif self._thread.is_alive():
            self._thread.join(STOP_S)

    def facts(self) -> dict[str, Any]:
        """Addresses and counts, for status pages."""
        return {
            "endpoint": self.endpoint,
            "replay": self.replay,
            "batches": self._sent,
            "listeners": self._listeners,
            "waiting": len(self.changes),
        }

    def _bind(self, config: KvEventsConfig) -> tuple[Any, Any, str, str]:
        """Bind the first pair of ports that are both free."""
        zmq, (endpoint, replay) = self._zmq, config.addresses()
        for number in range(config.publishers):
            events, replays = self._context.socket(zmq.XPUB), self._context.socket(zmq.ROUTER)
            events.setsockopt(zmq.XPUB_VERBOSER, 1)  # tells of every subscriber, not only of the first of its topic
            events.set_hwm(MOST_UNSENT)
            replays.set_hwm(config.buffer_batches + 2)  # a whole replay fits
            places = [_place(endpoint, number), "" if replay is None else _place(replay, number)]
            try:
                for socket, place in zip((events, replays), places, strict=True):
                    if place:
                        socket.setsockopt(zmq.IPV6, int("[" in place))
                        socket.bind(place)
            except zmq.ZMQError as error:
                events.close(0)
                replays.close(0)
                if error.errno != zmq.EADDRINUSE:
                    self._context.term()
                    raise ConfigError(f"[kv_events] {places[0]} cannot be bound: {error}") from error
            else:
                return events, replays, *places
        self._context.term()
        raise ConfigError(
            f"[kv_events] all {config.publishers} ports from {config.endpoint} on are in use: choose another one, or"
            f" raise publishers"
        )

    def _run(self) -> None:
        poller = self._zmq.Poller()
        poller.register(self._events, self._zmq.POLLIN)
        poller.register(self._replays, self._zmq.POLLIN)
        try:
            self._send(self._log.open(time.time()))
            while not self._stopping.is_set():
                ready = dict(poller.poll(0 if len(self.changes) > CHANGES_AT_ONCE else PERIOD_S * 1000))
                if self._events in ready:
                    self._greet()
                self._publish()
                if self._replays in ready:
                    self._repeat()
            self._publish()
        except Exception:
            logger.exception("KV events are no longer published")
            self.changes.lost = True  # and no longer collected
        finally:
            self._close()

    def _close(self) -> None:
        self._events.close(int(STOP_S * 1000))  # at most this long for what is still being sent
        self._replays.close(0)
        self._context.term()

    def _publish(self) -> None:
        if self.changes.lost:
            self._begin_again()
        changes = self.changes.take(CHANGES_AT_ONCE)
        if not changes:
            return
        if self._listeners:
            self._send(self._log.publish(changes, time.time()))
        else:
            self._log.pass_over(changes)

    def _begin_again(self) -> None:
        """Make subscribers forget all blocks, then send what the ledger has now."""
        logger.warning("more than %d KV changes waited; subscribers start again", self.changes.most)
        there: list[KvChange] = []
        if self._source.dump is None:
            self.changes.begin_again()
        else:
            there = self._source.dump()
        self._send(self._log.begin_again(time.time()))
        self._send(self._log.publish(there, time.time()))

    def _greet(self) -> None:
        """Count subscribers that arrived or left."""
        came = False
        with suppress(self._zmq.Again):
            while True:
                word = self._events.recv(self._zmq.NOBLOCK)
                if word[:1] == b"\x01":
                    self._listeners += 1
                    came = True
                elif word[:1] == b"\x00":
                    self._listeners -= 1
        if came:
            self._send(self._log.greet(time.time()))

    def _send(self, batches: list[Batch]) -> None:
        for number, payload in batches:
            self._events.send_multipart((self._topic, number.to_bytes(8, "big"), payload))
        self._sent += len(batches)

    def _repeat(self) -> None:
        """Respond to one request for replay; one that is not 8 bytes gets only the end."""
        frames = self._replays.recv_multipart()
        head = frames[:-1]
        if len(frames[-1]) == 8:
            for number, payload in self._log.replay(int.from_bytes(frames[-1], "big"), time.time()):
                self._replays.send_multipart((*head, number.to_bytes(8, "big"), payload))
        self._replays.send_multipart((*head, _END, b""))


def _place(address: tuple[str, int], number: int) -> str:
    host, port = address
    return f"tcp://{f'[{host}]' if ':' in host else host}:{port + number}"


def _new_context() -> tuple[Any, Any]:
    try:
        import zmq
    except ImportError as error:
        raise ConfigError("[kv_events] needs pyzmq: pip install '.[events]'") from error
    return zmq, zmq.Context()
