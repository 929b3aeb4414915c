"""Stored responses: continued, read, listed, deleted; bounded, expired, and separate per tenant."""

import json
from typing import Any

import httpx
import pytest
from openai.types.responses import Response

from serving.gateway.api.responses.kept import MemoryResponseStore
from serving.gateway.api.settings import ApiSettings, NamespaceKeys, ServedModel, hash_api_key
from serving.gateway.core.kept_responses import KeepLimits
from tests.gateway.api.support import Harness, check, named_events, post, request

PATH = "/v1/responses"
UNKNOWN = f"resp_{0:032x}"


def ask(harness: Harness, **fields: Any) -> str:
    """Create a response. Returns: its id."""
    reply = post(harness.app, PATH, {"input": "hi", **fields})
    assert reply.status_code == 200, reply.text
    return str(reply.json()["id"])


def get(harness: Harness, path: str, **kwargs: Any) -> httpx.Response:
    return request(harness.app, "GET", f"{PATH}/{path}", **kwargs)


@pytest.mark.parametrize("streamed", [False, True])
def test_what_was_answered_is_read_again(harness: Harness, streamed: bool) -> None:
    reply = post(harness.app, PATH, {"input": "hi", "stream": streamed, "metadata": {"a": "b"}})
    whole = named_events(reply.text)[-1]["response"] if streamed else reply.json()
    assert whole["store"] is True
    again = get(harness, whole["id"])
    assert again.json() == whole
    Response.model_validate(again.json())


def test_a_conversation_goes_on(harness: Harness) -> None:
    first = ask(harness, instructions="Be brief.")
    second = ask(harness, input=[{"role": "user", "content": "more"}], previous_response_id=first)
    assert harness.prompt().endswith(
        "<|user|>user: hi<|assistant|>Once upon a time<|eos|><|user|>user: more<|assistant|>"
    )
    assert "Be brief." not in harness.prompt(), "instructions are a request's own"
    assert get(harness, second).json()["previous_response_id"] == first
    assert request(harness.app, "DELETE", f"{PATH}/{first}").json() == {
        "id": first,
        "object": "response",
        "deleted": True,
    }
    ask(harness, input="end", previous_response_id=second)
    assert harness.prompt().count("Once upon a time") == 2, "what was said before a deleted one is known all the same"


def test_an_item_is_referred_to(harness: Harness) -> None:
    first = get(harness, ask(harness)).json()
    reference = {"type": "item_reference", "id": first["output"][0]["id"]}
    ask(harness, input=[{"role": "user", "content": "hi"}, reference, {"role": "user", "content": "more"}])
    assert "<|assistant|>Once upon a time<|eos|><|user|>user: more" in harness.prompt()
    for name in ("msg_1", 5, reference["id"][:-1] + "7", f"msg_{0:032x}_0"):
        reply = post(harness.app, PATH, {"input": [{"type": "item_reference", "id": name}]})
        check(reply, 404, "input[0]", "response_not_found")


def test_a_response_that_many_items_refer_to_is_read_once(served: ServedModel) -> None:
    class Counted(MemoryResponseStore):
        read = 0

        async def get(self, namespace: str, response_id: str) -> bytes | None:
            self.read += 1
            return await super().get(namespace, response_id)

    store = Counted(KeepLimits(), lambda: 0.0)
    harness = Harness(served, responses=store)
    item = get(harness, ask(harness)).json()["output"][0]
    reference = {"type": "item_reference", "id": item["id"]}
    store.read = 0
    ask(harness, input=[reference, {"role": "user", "content": "on"}] * 9)
    assert store.read == 1
    store.limits = KeepLimits(size_bytes=6 * len(json.dumps(item, separators=(",", ":"))))
    many = [reference] * 20
    check(post(harness.app, PATH, {"input": many}), 400, "input[6]", text="too large together")


def test_input_items_are_listed(harness: Harness) -> None:
    first = ask(harness)
    second = ask(harness, input=[{"role": "user", "content": "a"}, {"role": "user", "content": "b"}],
                 previous_response_id=first)  # fmt: skip
    whole = get(harness, f"{second}/input_items", params={"order": "asc"}).json()
    texts = [item["content"][0]["text"] for item in whole["data"]]
    assert texts == ["hi", "Once upon a time", "a", "b"]
    assert (whole["has_more"], whole["first_id"]) == (False, whole["data"][0]["id"])
    newest = get(harness, f"{second}/input_items", params={"limit": 1}).json()
    assert (newest["has_more"], newest["data"]) == (True, [whole["data"][3]])
    after = get(harness, f"{second}/input_items", params={"after": newest["last_id"], "limit": 100}).json()
    assert after["data"] == whole["data"][2::-1]
    last = get(harness, f"{second}/input_items", params={"after": whole["data"][0]["id"]}).json()
    assert last == {"object": "list", "data": [], "first_id": None, "last_id": None, "has_more": False}
    for name, value in (("limit", "0"), ("limit", "x"), ("order", "up"), ("after", "msg_1")):
        check(get(harness, f"{second}/input_items", params={name: value}), 400, name)


def test_what_is_not_kept_is_not_there(harness: Harness) -> None:
    for name in (UNKNOWN, "resp_1", "x" * 300, f"{UNKNOWN}:a"):
        reply = post(harness.app, PATH, {"input": "hi", "previous_response_id": name})
        check(reply, 404, "previous_response_id", "previous_response_not_found", "86400 s")
        check(get(harness, name), 404, "response_id")
        check(get(harness, f"{name}/input_items"), 404, "response_id")
        check(request(harness.app, "DELETE", f"{PATH}/{name}"), 404, "response_id")
        check(post(harness.app, f"{PATH}/{name}/cancel", None), 404, "response_id")
    assert not harness.backend.jobs


def test_what_is_over_cannot_be_cancelled_and_is_not_streamed(harness: Harness) -> None:
    first = ask(harness)
    check(post(harness.app, f"{PATH}/{first}/cancel", None), 400, "response_id", text="is completed")
    check(get(harness, first, params={"stream": "true"}), 400, "stream")


def test_a_client_may_wish_that_nothing_is_kept(harness: Harness) -> None:
    reply = post(harness.app, PATH, {"input": "hi", "store": False}).json()
    assert reply["store"] is False
    check(get(harness, reply["id"]), 404, "response_id")


def test_the_oldest_go_and_the_answer_says_how_long_they_stay(served: ServedModel) -> None:
    harness = Harness(served, ApiSettings(keep=KeepLimits(responses=2, seconds=60.0)))
    first, *others = [ask(harness) for _ in range(3)]
    check(get(harness, first), 404, "response_id", text="kept for 60 s, 2 at most, in the memory of the gateway")
    assert all(get(harness, one).status_code == 200 for one in others)
    nothing = Harness(served, ApiSettings(keep=KeepLimits(responses=0)))
    reply = post(nothing.app, PATH, {"input": "hi", "store": True}).json()
    assert reply["store"] is False
    check(get(nothing, reply["id"]), 404, "response_id", text="kept not at all")
    small = Harness(served, ApiSettings(keep=KeepLimits(size_bytes=100)))
    check(get(small, ask(small)), 404, "response_id")


def test_another_tenants_response_is_not_there_for_any_key(served: ServedModel) -> None:
    acme = NamespaceKeys("acme", (hash_api_key("a1"), hash_api_key("a2")))
    plain, admin = (hash_api_key("plain"),), (hash_api_key("root"),)
    harness = Harness(served, ApiSettings(namespaces=(acme,), api_key_hashes=plain, admin_key_hashes=admin))

    def sent(method: str, path: str, key: str | None, body: Any = None) -> httpx.Response:
        headers = {} if key is None else {"authorization": f"Bearer {key}"}
        return request(harness.app, method, f"{PATH}{path}", headers=headers, json=body)

    first = sent("POST", "", "a1", {"input": "hi"}).json()["id"]
    assert sent("GET", f"/{first}", "a2").status_code == 200, "keys of one tenant share"
    unknown = sent("GET", f"/{UNKNOWN}", "plain").json()["error"]["message"]
    for key in ("plain", "root"):
        going_on = sent("POST", "", key, {"input": "hi", "previous_response_id": first})
        check(going_on, 404, "previous_response_id", "previous_response_not_found")
        found = sent("GET", f"/{first}", key)
        check(found, 404, "response_id", "response_not_found")
        assert found.json()["error"]["message"] == unknown.replace(UNKNOWN, first)
        check(sent("GET", f"/{first}/input_items", key), 404, "response_id")
        check(sent("DELETE", f"/{first}", key), 404, "response_id")
        check(sent("POST", f"/{first}/cancel", key), 404, "response_id")
    for method, path in (("GET", ""), ("DELETE", ""), ("GET", "/input_items"), ("POST", "/cancel")):
        check(sent(method, f"/{first}{path}", None), 401)
    assert sent("GET", f"/{first}", "a1").status_code == 200


@pytest.mark.parametrize("stream", [False, True])
def test_clients_are_told_to_send_the_whole_conversation(served: ServedModel, stream: bool) -> None:
    """For evicted, deleted, unstored and unknown responses alike; a missing item is not a missing route either."""
    harness = Harness(served, ApiSettings(keep=KeepLimits(responses=1)))
    evicted = ask(harness)
    item = get(harness, evicted).json()["output"][0]["id"]
    deleted = ask(harness)
    request(harness.app, "DELETE", f"{PATH}/{deleted}")
    unkept = ask(harness, store=False)
    for name in (evicted, deleted, unkept, UNKNOWN, "resp_1"):
        error = post(harness.app, PATH, {"input": "hi", "previous_response_id": name, "stream": stream}).json()["error"]
        assert (error["type"], error["code"]) == ("invalid_request_error", "previous_response_not_found")
        assert error["param"] == "previous_response_id"
    for name in (item, "msg_1"):
        reference = {"type": "item_reference", "id": name}
        error = post(harness.app, PATH, {"input": [reference], "stream": stream}).json()["error"]
        assert (error["type"], error["param"]) == ("invalid_request_error", "input[0]")
    assert get(harness, evicted).json()["error"]["type"] == "not_found_error"
