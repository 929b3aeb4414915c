"""Changes and addresses for tests of KV events."""

import socket
from typing import Any

from serving.config.kv_events import KvEventsConfig
from serving.ids import BlockHash
from serving.values.kv_changes import GPU, BlocksStored


def named(number: int) -> BlockHash:
    return BlockHash(number.to_bytes(8, "big") + bytes(8))


def stored(first: int, count: int = 1, parent: int | None = None, **more: Any) -> BlocksStored:
    hashes = [named(first + place) for place in range(count)]
    return BlocksStored(GPU, hashes, None if parent is None else named(parent), [7] * (2 * count), **more)


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def somewhere(**keys: Any) -> KvEventsConfig:
    usual: dict[str, Any] = {"enabled": True, "publishers": 1}
    places = {name: f"tcp://127.0.0.1:{free_port()}" for name in ("endpoint", "replay")}
    return KvEventsConfig(**{**usual, **places, **keys})
