"""Background responses: stored event by event, read from any gateway, continued after a gateway's death."""

import asyncio
import contextlib
import json
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from serving.errors import DeadlineError, OverloadedError
from serving.gateway.api.responses.schema import CompactedResponse
from serving.gateway.api.settings import NamespaceKeys, ServedModel, hash_api_key
from serving.gateway.core.kept_responses import KeepLimits
from serving.gateway.core.work_items import WorkLimits
from serving.values.kv_hints import HintVerb
from tests.fakes.kv_hints import FakeKvHints
from tests.gateway.api.client import until
from tests.gateway.api.hinted import action, envelope
from tests.gateway.api.support import bearer, check, named_events, requested
from tests.gateway.api.two_gateways import LIMITS, PATH, Site, numbers, site_events, texts

UNKNOWN = f"resp_{0:032x}"
EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)


@pytest.fixture
def site(served: ServedModel) -> Site:
    return Site(served)


@pytest.mark.asyncio
async def test_a_background_response_is_answered_at_once_and_read_later(site: Site) -> None:
    site.script = site.say("Once upon a time", hang_after=2)
    queued = await site.ask(metadata={"a": "b"}, instructions="Be brief.")
    name = queued.json()["id"]
    assert (queued.status_code, queued.json()["status"], queued.json()["output"]) == (200, "queued", [])
    assert queued.json()["background"] is True
    Response.model_validate(queued.json())
    await until(lambda: texts(site_events(site, name)) == "Once upon")
    assert (await site.get(name, 1)).json()["status"] == "in_progress"
    assert (await site.get(f"{name}/input_items", 1)).json()["data"][0]["content"][0]["text"] == "hi"
    assert (await site.post(f"{name}/cancel", 1)).json()["status"] == "cancelled"

    site.script = site.say("Once upon a time")
    second = (await site.ask()).json()["id"]
    events = await site.events(second, 1)
    assert numbers(events) == list(range(len(events)))
    kinds = [event["type"] for event in events]
    assert kinds[:3] == ["response.created", "response.queued", "response.in_progress"]
    assert kinds[-1] == "response.completed"
    for event in events:
        EVENT.validate_python(event)
    whole = (await site.get(second, 1)).json()
    assert (whole["status"], whole["output"][0]["content"][0]["text"]) == ("completed", "Once upon a time")
    assert whole == events[-1]["response"]
    assert await site.events(second, 0, starting_after=5) == events[6:]
    assert await site.events(second, 0, starting_after=len(events) - 1) == []
    more = await site.ask(gateway=1, previous_response_id=second, background=False)
    assert more.status_code == 200
    assert "Once upon a time" in site.model.tokenizer.decode(site.backends[1].jobs[-1].sequences[0].prompt)


@pytest.mark.asyncio
async def test_a_streamed_one_sends_what_is_stored(site: Site) -> None:
    streamed = await site.ask(stream=True)
    events = named_events(streamed.text)
    assert events[-1]["response"]["status"] == "completed"
    assert await site.events(events[0]["response"]["id"], 1) == events


@pytest.mark.asyncio
@pytest.mark.parametrize("released", [False, True])
async def test_another_gateway_continues_after_the_last_event(site: Site, released: bool) -> None:
    site.script = site.say("Once upon a time there was a little dog", hang_after=5)
    name = (await site.ask(seed=None, temperature=1.0)).json()["id"]
    await until(lambda: len(site_events(site, name)) >= 10)
    following = asyncio.create_task(site.events(name, 1))
    before = site_events(site, name)
    if released:
        await site.runs[0].stop()
    else:
        await site.kill(0)
        await site.runs[1].sweep()
        assert not site.backends[1].jobs, "the lease has not run out"
        site.now += LIMITS.lease_s
    site.script = site.say("Once upon a time there was a little dog", per_update=3)
    await site.runs[1].sweep()
    events = await following
    assert events[: len(before)] == before
    assert numbers(events) == list(range(len(events)))
    assert texts(events) == "Once upon a time there was a little dog"
    first, second = (backend.jobs[0].sequences[0] for backend in site.backends)
    assert (first.prompt, first.sampling) == (second.prompt, second.sampling), "the same seed, though none was given"
    assert second.time_left_s <= first.time_left_s
    assert (await site.get(name, 1)).json()["output"][0]["id"] == f"msg_{name[5:]}_0"
    assert {event["response"]["created_at"] for event in events if "response" in event} == {
        events[0]["response"]["created_at"]
    }


@pytest.mark.asyncio
async def test_the_old_owner_cannot_write_any_more(site: Site) -> None:
    site.script = site.say("Once upon a time", delay_s=0.01)
    name = (await site.ask()).json()["id"]
    await until(lambda: len(site_events(site, name)) >= 4)
    assert await site.store.claim("default", name, "g3") is None
    site.now += LIMITS.lease_s
    assert await site.store.claim("default", name, "g3") is not None
    await until(lambda: not site.runs[0]._tasks)
    assert site.backends[0].generations[0].cancelled
    assert (await site.get(name)).json()["status"] == "in_progress"
    check(await site.get(name.replace("resp_", "resp_0")), 404, "response_id")


@pytest.mark.asyncio
async def test_a_gateway_that_finds_no_time_left_or_a_cancelled_one_ends_it(site: Site) -> None:
    for cancelled in (False, True):
        site.script = site.say("Once upon a time", hang_after=2)
        name = (await site.ask()).json()["id"]
        await until(lambda name=name: texts(site_events(site, name)) == "Once upon")  # type: ignore[misc]
        before = site_events(site, name)
        await site.kill(0)
        site.now += LIMITS.lease_s
        if cancelled:
            await site.store.cancel("default", name)
            assert (await site.get(name, 1)).json()["status"] == "cancelled"
        else:
            site.runs[1]._wall = lambda: 1e12
        await site.runs[1].sweep()
        events = await site.events(name, 1)
        assert events[:-1] == before
        status = "cancelled" if cancelled else "failed"
        assert events[-1]["response"]["status"] == (await site.get(name, 1)).json()["status"] == status
        if not cancelled:
            assert "time is over" in events[-1]["response"]["error"]["message"]
        assert not site.backends[1].jobs
        site.runs[0].store, site.runs[1]._wall = site.store, lambda: 0.0


@pytest.mark.asyncio
async def test_a_full_gateway_leaves_it_to_the_next_sweep(site: Site) -> None:
    site.script = site.say("Once upon a time", hang_after=2)
    name = (await site.ask()).json()["id"]
    await site.kill(0)
    site.now += LIMITS.lease_s
    site.backends[1].refuse = OverloadedError("full", retry_after_s=1.0)
    await site.runs[1].sweep()
    await until(lambda: not site.runs[1]._tasks)
    site.backends[1].refuse, site.script = None, site.say("Once upon a time")
    await site.runs[1].sweep()
    assert texts(await site.events(name, 1)) == "Once upon a time"


@pytest.mark.asyncio
async def test_one_that_kills_gateways_is_given_up(site: Site) -> None:
    site.script = site.say("Once upon a time", hang_after=2)
    name = (await site.ask()).json()["id"]
    await until(lambda: texts(site_events(site, name)) == "Once upon")
    await site.kill(0)
    for number in range(3):
        site.now += LIMITS.lease_s
        assert await site.store.claim("default", name, f"lost{number}") is not None
    site.now += LIMITS.lease_s
    await site.runs[1].sweep()
    events = await site.events(name, 1)
    assert "was given up" in events[-1]["response"]["error"]["message"]
    assert not site.backends[1].jobs


@pytest.mark.asyncio
async def test_what_this_release_refuses_fails_at_once(site: Site) -> None:
    """Another one may have accepted and stored it."""
    site.script = site.say("Once upon a time", hang_after=2)
    name = (await site.ask()).json()["id"]
    await site.kill(0)
    value = json.loads(site.store._work._values["default", name])
    value["body"]["top_p"] = "high"
    site.store._work._values["default", name] = json.dumps(value).encode()
    site.now += LIMITS.lease_s
    assert (await site.get(name, 1)).status_code == 200
    await site.runs[1].sweep()
    events = await site.events(name, 1)
    assert "'top_p'" in events[-1]["response"]["error"]["message"]


@pytest.mark.asyncio
async def test_hints_of_a_background_response(app: FastAPI, servers: FakeKvHints) -> None:
    """Their outcomes are in the response, and what waits for its end is done then."""
    asked = envelope(action("kv.touch", session_id="s"), action("kv.release"))
    body = {"input": "hi", "background": True, "stream": True, "kv_hints": asked, "return_kv_hints": True}
    reply = await requested(app, "POST", PATH, json=body, headers={**bearer("acme"), "session-id": "own"})
    outcomes = named_events(reply.text)[-1]["response"]["kv_hints"]["outcomes"]
    assert [one["outcome"] for one in outcomes] == ["accepted", "deferred"]
    await until(lambda: [(one.verb, one.session) for _, one in servers.sent][1:] == [(HintVerb.RELEASE, "own")])


@pytest.mark.asyncio
async def test_cancelled_deleted_and_failed_ones(site: Site) -> None:
    site.script = site.say("Once upon a time", hang_after=2)
    name = (await site.ask()).json()["id"]
    await until(lambda: texts(site_events(site, name)) == "Once upon")
    cancelled = await site.post(f"{name}/cancel")
    assert cancelled.json()["status"] == "cancelled"
    assert cancelled.json()["output"][0]["content"][0]["text"] == "Once upon"
    assert site.backends[0].generations[-1].cancelled
    assert (await site.post(f"{name}/cancel", 1)).json() == cancelled.json(), "once more"
    events = await site.events(name)
    assert (events[-1]["type"], events[-1]["sequence_number"]) == ("response.incomplete", len(events) - 1)

    deleted = (await site.ask()).json()["id"]
    assert (await requested(site.apps[0], "DELETE", f"{PATH}/{deleted}")).json()["deleted"] is True
    await until(lambda: not site.runs[0]._tasks)
    assert site.backends[0].generations[-1].cancelled
    check(await site.get(deleted), 404, "response_id")
    check(await site.get(deleted, stream="true"), 404, "response_id")
    check(await requested(site.apps[0], "DELETE", f"{PATH}/{deleted}"), 404, "response_id")

    site.script = site.say("Once upon a time", fail_after=2, error=DeadlineError("the deadline has passed"))
    failed = (await site.ask()).json()["id"]
    events = await site.events(failed)
    assert (events[-1]["type"], events[-1]["response"]["status"]) == ("response.failed", "failed")
    assert "deadline" in events[-1]["response"]["error"]["message"]
    assert (await site.get(failed, 1)).json() == events[-1]["response"]
    check(await site.post(f"{failed}/cancel"), 400, "response_id", text="is failed")


@pytest.mark.asyncio
@pytest.mark.parametrize("silent", [False, True])
async def test_a_store_that_is_away_for_a_while_loses_and_doubles_nothing(
    site: Site, silent: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("serving.gateway.api.responses.background.AGAIN_S", 0.0)
    site.script = site.say("Once upon a time", delay_s=0.001)
    name = (await site.ask()).json()["id"]
    for _ in range(3):
        site.store.silent, site.store.away = silent, 2
        await until(lambda: not site.store.away)
    events = await site.events(name)
    assert numbers(events) == list(range(len(events)))
    assert texts(events) == "Once upon a time"


@pytest.mark.asyncio
async def test_a_long_silence_has_events_and_keeps_the_lease(served: ServedModel) -> None:
    limits = WorkLimits(lease_s=0.003)
    site = Site(served, limits, event_silence_s=0.002)
    site.script = site.say("Once upon", hang_after=1)
    name = (await site.ask()).json()["id"]
    await until(lambda: len(site_events(site, name)) > 8)
    assert [event["type"] for event in site_events(site, name)][-1] == "response.in_progress"
    site.now += 0.0029
    await site.runs[1].sweep()
    assert not site.runs[1]._tasks
    await site.kill(0)
    site.now += 1.0
    site.script = site.say("Once upon")
    await site.runs[1].sweep()
    events = await site.events(name, 1)
    assert (texts(events), numbers(events)) == ("Once upon", list(range(len(events))))


@pytest.mark.asyncio
async def test_limits(served: ServedModel) -> None:
    site = Site(served)
    site.script = site.say("Once upon a time", hang_after=1)
    names = [(await site.ask()).json()["id"] for _ in range(2)]
    refused = await site.ask()
    check(refused, 429, code="rate_limit_exceeded")
    assert refused.headers["retry-after"]
    await site.post(f"{names[0]}/cancel")
    assert (await site.ask()).status_code == 200, "one that has ended makes room"
    check(await site.get(names[0], stream="true"), 400, "stream", text="whose events are stored")
    assert (await site.get(names[0])).json()["status"] == "cancelled", "it is still a stored response"
    site.backends[1].refuse = OverloadedError("full", retry_after_s=1.0)
    await site.post(f"{names[1]}/cancel")
    check(await site.ask(gateway=1), 429)
    assert len(await site.store.items("default")) == 1, "nothing of a refused one is stored"
    await site.runs[0].stop()

    small = Site(served, WorkLimits(size_bytes=4000))
    small.script = small.say("Once upon a time " * 20)
    name = (await small.ask()).json()["id"]
    events = await small.events(name)
    assert (events[-1]["type"], numbers(events)) == ("response.failed", list(range(len(events))))


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("fields", "param"),
    [({"store": False}, "background"), ({"background": "x"}, "background")],
)
async def test_bad_requests(site: Site, fields: dict[str, Any], param: str) -> None:
    check(await site.ask(**fields), 400, param)
    assert not site.backends[0].jobs
    assert not await site.store.items("default")


@pytest.mark.asyncio
async def test_bad_reading(site: Site) -> None:
    name = (await site.ask()).json()["id"]
    last = len(await site.events(name)) - 1
    for value in ("x", "-1", "1.5", "", str(last + 1), "9" * 30, "\u0661"):
        check(await site.get(name, stream="true", starting_after=value), 400, "starting_after")
    check(await site.get(name, starting_after=1), 400, "starting_after", text="needs stream=true")
    check(await site.get(name, stream="maybe"), 400, "stream")
    for unknown in (UNKNOWN, "%23adds", "resp_1"):
        check(await site.get(unknown, stream="true"), 404, "response_id")
        check(await site.post(f"{unknown}/cancel"), 404, "response_id")
    check(await site.post(f"{name}/cancel"), 400, "response_id", text="is completed")


@pytest.mark.asyncio
async def test_another_tenant_finds_nothing(served: ServedModel) -> None:
    acme = NamespaceKeys("acme", (hash_api_key("a1"),))
    site = Site(served, namespaces=(acme,), api_key_hashes=(hash_api_key("plain"),))
    site.script = site.say("Once upon a time", hang_after=2)
    name = (await site.ask(key="a1")).json()["id"]
    for query in ({}, {"stream": "true"}):
        check(await site.get(name, 0, "plain", **query), 404, "response_id", "response_not_found")
    check(await site.post(f"{name}/cancel", 0, "plain"), 404, "response_id")
    gone = await requested(site.apps[0], "DELETE", f"{PATH}/{name}", headers=bearer("plain"))
    check(gone, 404, "response_id")
    assert (await site.get(name, 0, "a1")).json()["status"] in ("queued", "in_progress")
    await site.kill(0)
    site.now += LIMITS.lease_s
    await site.runs[1].sweep()
    await until(lambda: bool(site.backends[1].jobs))
    jobs = [backend.jobs[0] for backend in site.backends]
    assert len({(job.key, job.sequences[0].namespace, job.sequences[0].salt) for job in jobs}) == 1
    await site.runs[1].stop()


@pytest.mark.asyncio
async def test_where_nothing_is_stored_there_are_none(served: ServedModel) -> None:
    for site in (Site(served, WorkLimits(items=0)), Site(served, keep=KeepLimits(responses=0))):
        check(await site.ask(), 400, "background")


@pytest.mark.asyncio
async def test_a_client_that_leaves_ends_nothing(site: Site) -> None:
    site.script = site.say("Once upon a time", delay_s=0.002)
    asking = asyncio.create_task(site.ask(stream=True))
    await until(lambda: bool(site.backends[0].jobs))
    asking.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await asking
    [name] = await site.store.items("default")
    assert texts(await site.events(name, 1)) == "Once upon a time"
    assert json.loads(json.dumps((await site.get(name)).json()))["status"] == "completed"


@pytest.mark.asyncio
async def test_a_conversation_is_compacted(site: Site) -> None:
    async def compact(**fields: Any) -> httpx.Response:
        return await requested(site.apps[0], "POST", f"{PATH}/compact", json=fields)

    said = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "Hello."},
        {"role": "user", "content": "more"},
    ]
    answer = (await compact(input=said)).json()
    CompactedResponse.model_validate(answer)
    assert (answer["object"], answer["usage"]["output_tokens"]) == ("response.compaction", 5)
    *kept, summary = answer["output"]
    assert [item["content"][0]["text"] for item in kept] == ["hi", "more"]
    assert summary["encrypted_content"] == "cloudmatrix:Once upon a time"
    going_on = [*answer["output"], {"role": "user", "content": "end"}]
    assert (await site.ask(input=going_on, background=False)).status_code == 200
    prompt = site.model.tokenizer.decode(site.backends[0].jobs[-1].sequences[0].prompt)
    assert "Summary of the conversation so far:\nOnce upon a time" in prompt
    again = (await compact(input=going_on)).json()["output"]
    assert [item.get("role") for item in again] == ["user", None], "what an earlier summary covers is not repeated"
    assert (await compact(input="hi")).status_code == 200
    first = (await site.ask(background=False)).json()["id"]
    earlier = (await compact(input="more", previous_response_id=first)).json()["output"]
    assert [item["content"][0]["text"] for item in earlier[:-1]] == ["hi", "more"]
    for name in ("stream", "background"):
        check(await compact(input="hi", **{name: True}), 400, name)
    check(await compact(input=[{"type": "compaction_trigger"}]), 400, "input[0]")
