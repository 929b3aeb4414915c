"""A few texts are processed at a time, for any number of clients; hopeless ones are refused without work."""

import asyncio
import threading
import time
from collections.abc import Callable

import pytest

from serving.errors import InvalidRequestError, OverloadedError
from serving.gateway.api.http.tenant import Tenant
from serving.gateway.api.settings import ApiSettings, NamespaceKeys, ServedModel, hash_api_key
from serving.gateway.api.text_desk import MOST_WAITING, UNIT_BYTES, UNITS, TextDesk
from tests.gateway.api.client import start, until
from tests.gateway.api.support import MAX_MODEL_LEN, Harness, complete, post

ALL = UNITS * UNIT_BYTES


class Counted:
    """Work that waits for a signal and counts its concurrency."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.order: list[str] = []
        self.at_once = self.most = 0
        self._lock = threading.Lock()

    def of(self, name: str) -> Callable[[], str]:
        def work() -> str:
            with self._lock:
                self.order.append(name)
                self.at_once += 1
                self.most = max(self.most, self.at_once)
            assert self.go.wait(60)
            with self._lock:
                self.at_once -= 1
            return name

        return work


def desk_of(**settings: object) -> TextDesk:
    keys = NamespaceKeys("acme", (hash_api_key("a"), hash_api_key("b")))
    return TextDesk(ApiSettings(namespaces=(keys,), **settings), time.monotonic)  # type: ignore[arg-type]


def tenant(key: str) -> Tenant:
    return Tenant("acme", b"", key=key)


@pytest.mark.asyncio
async def test_a_bounded_amount_at_a_time() -> None:
    desk, counted = desk_of(), Counted()
    runs = [asyncio.create_task(desk.run(tenant("a"), ALL // 4, counted.of(str(i)))) for i in range(9)]
    await until(lambda: counted.at_once == 4)
    assert desk.busy == (UNITS, 5)
    counted.go.set()
    assert await asyncio.gather(*runs) == [str(i) for i in range(9)]
    assert counted.most == 4
    assert desk.busy == (0, 0)


@pytest.mark.asyncio
async def test_keys_take_turns() -> None:
    desk, counted = desk_of(), Counted()
    runs = [asyncio.create_task(desk.run(tenant("a"), ALL, counted.of("a"))) for _ in range(4)]
    await until(lambda: counted.at_once == 1)
    runs.append(asyncio.create_task(desk.run(tenant("b"), 10, counted.of("b"))))
    await until(lambda: desk.busy[1] == 4)
    counted.go.set()
    await asyncio.gather(*runs)
    assert counted.order.index("b") < 3


@pytest.mark.asyncio
async def test_one_key_does_not_fill_the_queue() -> None:
    desk, counted = desk_of(), Counted()
    runs = [asyncio.create_task(desk.run(tenant("a"), ALL, counted.of("a"))) for _ in range(1 + MOST_WAITING)]
    await until(lambda: counted.at_once == 1 and runs[-1].done())
    with pytest.raises(OverloadedError, match="too much text"):
        await runs.pop()
    runs = [run for run in runs if not run.done()]
    runs.append(asyncio.create_task(desk.run(tenant("b"), 10, counted.of("b"))))
    counted.go.set()
    assert "b" in await asyncio.gather(*runs)


@pytest.mark.asyncio
async def test_who_leaves_gives_the_place_back() -> None:
    desk, counted = desk_of(), Counted()
    runs = [asyncio.create_task(desk.run(tenant("a"), ALL, counted.of("a"))) for _ in range(2)]
    await until(lambda: counted.at_once == 1 and desk.busy[1] == 1)
    runs[1].cancel()
    await until(lambda: desk.busy == (UNITS, 0))
    runs[0].cancel()  # its thread continues, so its slot is taken until that has ended
    with pytest.raises(asyncio.CancelledError):
        await runs[0]
    assert desk.busy == (UNITS, 0)
    counted.go.set()
    await until(lambda: desk.busy == (0, 0))
    assert await desk.run(tenant("a"), ALL, counted.of("next")) == "next"


@pytest.mark.asyncio
async def test_a_wait_has_an_end_and_errors_come_through() -> None:
    def fail() -> None:
        raise InvalidRequestError("no")

    desk, counted = desk_of(request_timeout_s=0.05), Counted()
    run = asyncio.create_task(desk.run(tenant("a"), ALL, counted.of("a")))
    await until(lambda: counted.at_once == 1)
    with pytest.raises(TimeoutError):
        await desk.run(tenant("b"), 10, counted.of("b"))
    counted.go.set()
    await run
    with pytest.raises(InvalidRequestError):
        await desk.run(tenant("a"), 4 * ALL, fail)
    assert desk.busy == (0, 0)


def test_a_hopeless_text_is_not_tokenized(harness: Harness) -> None:
    for body in ({"prompt": "a" * 1_000_000}, {"messages": [{"role": "user", "content": "a" * 1_000_000}]}):
        reply = post(harness.app, "/tokenize", body)
        assert reply.status_code == 400
        error = reply.json()["error"]
        assert (error["code"], error["param"]) == ("context_length_exceeded", next(iter(body)))


def test_more_tokens_than_the_model_takes_are_not_decoded(harness: Harness) -> None:
    assert post(harness.app, "/detokenize", {"tokens": [5] * MAX_MODEL_LEN}).status_code == 200
    reply = post(harness.app, "/detokenize", {"tokens": [5] * (MAX_MODEL_LEN + 1)})
    assert reply.status_code == 400
    assert reply.json()["error"]["code"] == "context_length_exceeded"
    assert post(harness.app, "/detokenize", {"tokens": [5, 10**6]}).json()["error"]["param"] == "tokens"


def test_a_full_desk_is_429(served: ServedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("serving.gateway.api.text_desk.WAITING_BODIES", 0)
    monkeypatch.setattr("serving.gateway.api.text_desk.MOST_WAITING", 0)
    monkeypatch.setattr("serving.gateway.api.text_desk.UNITS", 1)
    harness, counted = Harness(served, ApiSettings(encode_in_thread_bytes=100)), Counted()
    long = {"model": "tiny", "prompt": "dog " * 100}

    async def scene() -> None:
        monkeypatch.setattr("serving.gateway.api.routes._tokenize", lambda *_: (counted.of("a")(), None))
        _, first = start(harness.app, "/tokenize", long)
        await until(lambda: counted.at_once == 1)
        for path in ("/tokenize", "/v1/completions"):
            exchange, task = start(harness.app, path, long)
            await task
            assert exchange.status == 429
            assert b"too much text" in exchange.body
        counted.go.set()
        await first

    asyncio.run(scene())
    assert complete(harness.app, prompt="dog " * 100).status_code == 200
