"""Slowly arriving bodies share one memory budget; bodies that arrive at once need none."""

import json

import pytest

from serving.errors import OverloadedError
from serving.gateway.api.body import BodyRoom
from serving.gateway.api.settings import ApiSettings, NamespaceKeys, ServedModel, hash_api_key
from tests.gateway.api.client import start, until
from tests.gateway.api.support import Harness

PATH = "/v1/completions"
BODY = json.dumps({"model": "tiny", "prompt": "The dog " * 20}).encode()


def test_one_key_gets_half(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("serving.gateway.api.body.BODIES", 4)
    room = BodyRoom(100)
    room.take("a", 200)
    for key, size in (("a", 1), ("b", 201)):
        with pytest.raises(OverloadedError):
            room.take(key, size)
    room.take("b", 100)
    with pytest.raises(OverloadedError):
        room.take("c", 101)
    room.give("a", 200)
    room.take("c", 101)
    assert room.held == 201


@pytest.mark.asyncio
async def test_slow_bodies_leave_room_for_others(served: ServedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("serving.gateway.api.body.BODIES", 2)
    keys = tuple(NamespaceKeys(name, (hash_api_key(name),)) for name in "abc")
    harness = Harness(served, ApiSettings(max_body_bytes=len(BODY), namespaces=keys))
    room: BodyRoom = harness.app.state.body_room
    a, b = ({"authorization": f"Bearer {name}"} for name in "ab")
    slow, reading = start(harness.app, PATH, BODY, chunks=3, headers=a, stop_at=2)
    await until(lambda: room.held > len(BODY) // 2)
    refused, task = start(harness.app, PATH, BODY, chunks=2, headers=a)
    await task
    assert refused.status == 429
    assert b"in progress" in refused.body
    for headers, chunks in ((a, 1), (b, 2)):
        fine, task = start(harness.app, PATH, BODY, chunks=chunks, headers=headers)
        await task
        assert fine.status == 200
    slow.gone.set()
    await reading
    assert room.held == 0
