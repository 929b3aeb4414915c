"""Learned tool pauses over HTTP: what is sent while a session waits for its tools, and what cancels it."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from serving.gateway.api.settings import ApiSettings, ServedModel
from serving.gateway.core import pause_times as core
from serving.gateway.core.kv_hints import HintLimits, SessionName
from serving.gateway.core.pause_times import PauseTimes
from serving.values.kv_hints import HintVerb
from tests.fakes.kv_hints import FakeKvHints
from tests.gateway.api.hinted import action, envelope
from tests.gateway.api.support import Harness, requested

CALL = '<tool_call>\n{"name": "get-weather", "arguments": {}}\n</tool_call>'
TOOLS = [{"type": "function", "function": {"name": "get-weather"}}]
LIMITS = HintLimits(block_tokens=8, tiered=True)
NAMED = {"session-id": "s", "thread-id": "s"}


@pytest.fixture
def waiting(hermes: ServedModel, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[Harness, FakeKvHints]]:
    """A gateway that knows that the tool takes a minute."""
    monkeypatch.setattr(core, "SETTLE_S", 0.01)

    def make(*, acts: bool = True) -> tuple[Harness, FakeKvHints]:
        servers, times = FakeKvHints(), PauseTimes(LIMITS, acts=acts)
        for number in range(10):
            times.on_answer("default", SessionName("earlier"), ["get-weather"], 60.0 * number)
            times.on_request("default", SessionName("earlier"), 60.0 * number + 60, offers_tools=True)
        harness = Harness(hermes, ApiSettings(hints=LIMITS), hints=servers, pauses=times)
        harness.script_of = lambda _: harness.say(CALL)
        return harness, servers

    return make


async def turn(harness: Harness, **more: Any) -> Any:
    body = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "tools": TOOLS, **more}
    reply = await requested(harness.app, "POST", "/v1/chat/completions", json=body, headers=NAMED)
    assert reply.status_code == 200, reply.text
    return harness.backend.jobs[-1].sequences[0].claim


async def sent(servers: FakeKvHints, count: int) -> list[HintVerb]:
    for _ in range(2000):
        if len(servers.sent) >= count:
            break
        await asyncio.sleep(0.005)
    await asyncio.sleep(0.03)
    return [one.verb for _, one in servers.sent]


@pytest.mark.parametrize("stream", [False, True])
def test_a_session_waits_on_ssd_until_its_next_request_or_the_end(
    waiting: Callable[..., tuple[Harness, FakeKvHints]], stream: bool
) -> None:
    async def run() -> None:
        harness, servers = waiting()
        claim = await turn(harness, stream=stream)
        assert (claim.session, [span.ttl_s for span in claim.spans]) == ("s", [10.0])
        assert await sent(servers, 2) == [HintVerb.RETAIN, HintVerb.DEMOTE]
        assert harness.pauses.waits(), "for the time of the prefetch"
        harness.script_of = lambda _: harness.say("Sunny.")
        await turn(harness)
        assert not harness.pauses.waits()
        page = harness.metrics.render().decode()
        assert 'cloudmatrix:kv_pause_seconds_count{engine="0",model_name="tiny",tool="get-weather"} 1.0' in page
        harness.script_of = lambda _: harness.say(CALL)
        await turn(harness)
        assert harness.pauses.waits()
        harness.pauses.close()
        count = len(servers.sent)
        await asyncio.sleep(0.05)
        assert not harness.pauses.waits()
        assert len(servers.sent) == count, "nothing is sent after the end"

    asyncio.run(run())


def test_hints_of_the_client_take_precedence(waiting: Callable[..., tuple[Harness, FakeKvHints]]) -> None:
    async def run() -> None:
        harness, servers = waiting()
        assert await turn(harness, kv_hints=envelope(action("kv.prefetch", session_id="other"))) is None
        claim = await turn(harness, prompt_cache_retention="24h")
        assert [span.ttl_s for span in claim.spans] == [3600.0]
        assert await sent(servers, 1) == [HintVerb.PREFETCH], "only the client's own"
        await turn(harness)
        body = envelope(action("kv.touch", session_id="s"))
        await requested(harness.app, "POST", "/v1/kv_hints", json=body)
        assert await sent(servers, 2) == [HintVerb.PREFETCH, HintVerb.TOUCH]

    asyncio.run(run())


def test_observing_changes_nothing(waiting: Callable[..., tuple[Harness, FakeKvHints]]) -> None:
    async def run() -> None:
        harness, servers = waiting(acts=False)
        assert await turn(harness) is None
        assert harness.pauses.times.open == 1
        assert await turn(harness, tools=None) is None
        assert harness.pauses.times.open == 1, "a request without tools is a side request"
        assert not harness.pauses.waits()
        assert not servers.sent
        assert 'tool="get-weather"' not in harness.metrics.render().decode()

    asyncio.run(run())
