"""A subscriber with sockets, in the way of vLLM's example: SUB for batches, and a request for what it missed."""

import time
from collections.abc import Callable
from typing import Any

import zmq

from serving.kvevents.core.event_log import Batch
from tests.kvevents.subscriber import SubscriberIndex

LIMIT_MS = 10_000
END = (1 << 64) - 1


class ZmqSubscriber:
    """Follows one publisher."""

    def __init__(self, endpoint: str, replay: str) -> None:
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.SUB)
        self._socket.setsockopt(zmq.SUBSCRIBE, b"kv@")
        self._socket.connect(endpoint)
        self._replay = replay
        self.index = SubscriberIndex(self.ask)
        self.topics: set[bytes] = set()

    def ask(self, start: int) -> list[Batch]:
        """Request a replay."""
        socket = self._context.socket(zmq.DEALER)
        try:
            socket.connect(self._replay)
            socket.send_multipart((b"", start.to_bytes(8, "big")))
            batches: list[Batch] = []
            while socket.poll(LIMIT_MS):
                _, number, payload = socket.recv_multipart()
                if int.from_bytes(number, "big") == END:
                    return batches
                batches.append((int.from_bytes(number, "big"), payload))
            raise TimeoutError("the replay has no end")
        finally:
            socket.close(0)

    def lose(self) -> None:
        """Receive one batch, and ignore it."""
        assert self._socket.poll(LIMIT_MS)
        self._socket.recv_multipart()

    def until(self, reached: Callable[[SubscriberIndex], bool]) -> SubscriberIndex:
        """Listen until the index is as wanted."""
        deadline = time.monotonic() + LIMIT_MS / 1000
        while not reached(self.index):
            assert time.monotonic() < deadline, dict(self.index.media)
            if self._socket.poll(100):
                topic, number, payload = self._socket.recv_multipart()
                self.topics.add(topic)
                self.index.hear(int.from_bytes(number, "big"), payload)
        return self.index

    def close(self) -> None:
        self._socket.close(0)
        self._context.term()

    def __enter__(self) -> "ZmqSubscriber":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()
