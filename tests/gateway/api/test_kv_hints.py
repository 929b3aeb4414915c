"""KV hints over HTTP: the envelope, Anthropic's and OpenAI's fields, sessions, usage, and what is refused."""

import asyncio
import json
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from serving.gateway.api.settings import ApiSettings, NamespaceKeys, ServedModel, hash_api_key
from serving.gateway.core.kv_hints import HintLimits
from serving.values.kv_hints import ClaimKind, ClaimSpan, HintVerb, SequenceClaim
from tests.fakes.backend import Script
from tests.fakes.kv_hints import FakeKvHints
from tests.gateway.api.support import (
    Harness,
    bearer,
    check,
    events,
    named_events,
    post,
    request,
    requested,
)

BLOCK = 8
MANY = "Tell me a story about a cat, a bird and the old tree! " * 3


@pytest.fixture(scope="module")
def built(served: ServedModel) -> tuple[Harness, FakeKvHints]:
    servers = FakeKvHints()
    keys = {name: (hash_api_key(name),) for name in ("acme", "umbrella")}
    namespaces = tuple(NamespaceKeys(name, digests) for name, digests in keys.items())
    settings = ApiSettings(
        namespaces=namespaces, admin_key_hashes=(hash_api_key("root"),), hints=HintLimits(block_tokens=BLOCK)
    )
    return Harness(served, settings, hints=servers), servers


@pytest.fixture
def servers(built: tuple[Harness, FakeKvHints]) -> FakeKvHints:
    built[1].sent.clear()
    built[1].held = {("acme", "s", ""): 4, ("acme", "s", "agent"): 2}
    return built[1]


@pytest.fixture
def app(built: tuple[Harness, FakeKvHints], servers: FakeKvHints) -> FastAPI:
    return built[0].renewed().app


@pytest.fixture
def hinted(built: tuple[Harness, FakeKvHints]) -> Harness:
    return built[0]


ACME: dict[str, Any] = {"headers": bearer("acme")}


def envelope(*actions: dict[str, Any], **more: Any) -> dict[str, Any]:
    numbered = [{"action_id": f"a{index}", **one} for index, one in enumerate(actions)]
    return {"protocol_version": "0.1", "message_id": "m", "actions": numbered, **more}


def action(kind: str, /, **payload: Any) -> dict[str, Any]:
    return {"action_type": kind, "action_version": "1.0", "payload": payload}


def claim_of(harness: Harness, index: int = 0) -> SequenceClaim | None:
    return harness.backend.jobs[-1].sequences[index].claim


def messages(app: FastAPI, *, headers: dict[str, str] | None = None, **fields: Any) -> httpx.Response:
    body = {"messages": [{"role": "user", "content": MANY}], "max_tokens": 5, **fields}
    return post(app, "/v1/messages", body, headers={**bearer("acme"), **(headers or {})})


def anthropic_error(reply: httpx.Response, status: int, text: str) -> None:
    assert (reply.status_code, reply.json()["type"]) == (status, "error"), reply.text
    assert text in reply.json()["error"]["message"]
    assert reply.headers["request-id"]


# ---- the envelope ----------------------------------------------------------------------------------------------------


def test_actions_without_a_request(app: FastAPI, servers: FakeKvHints) -> None:
    asked = envelope(
        action("kv.touch", session_id="s"),
        action("kv.release", session_id="s", branch="agent"),
        action("kv.demote", session_id="other"),
        action("kv.teleport"),
        action("kv.retain", session_id="s", ttl_s=7200),
    )
    reply = post(app, "/v1/kv_hints", asked, **ACME)
    assert reply.status_code == 200, reply.text
    assert reply.json()["message_id"] == "m"
    outcomes = [(one["action_id"], one["outcome"], one["tokens"]) for one in reply.json()["outcomes"]]
    assert outcomes == [
        ("a0", "accepted", 6 * BLOCK), ("a1", "accepted", 2 * BLOCK), ("a2", "missing", 0), ("a3", "rejected", 0),
        ("a4", "clipped", 4 * BLOCK),
    ]  # fmt: skip
    assert [one.verb for _, one in servers.sent] == [
        HintVerb.TOUCH, HintVerb.RELEASE, HintVerb.DEMOTE, HintVerb.RETAIN,
    ]  # fmt: skip


def test_another_tenants_session_is_missing(app: FastAPI, servers: FakeKvHints) -> None:
    reply = post(app, "/v1/kv_hints", envelope(action("kv.release", session_id="s")), headers=bearer("umbrella"))
    assert [one["outcome"] for one in reply.json()["outcomes"]] == ["missing"]
    assert servers.sent[0][0] == "umbrella"
    assert ("acme", "s", "") in servers.held


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (envelope(*[action("kv.touch", session_id="s")] * 65), "actions"),
        (envelope(*[{**action("kv.touch"), "action_id": "x"}] * 2), "actions[1].action_id"),
        (envelope(action("kv.retain", session_id="s", ttl_s=0)), "actions[0].payload.ttl_s"),
        (envelope(action("kv.retain", session_id="s", ttl_s=1e9)), "actions[0].payload.ttl_s"),
        (envelope(action("kv.retain", session_id="s", ttl_s="5 m")), "actions[0].payload.ttl_s"),
        (envelope(action("kv.touch", session_id="a\0")), "actions[0].payload.session_id"),
        (envelope(protocol_version="9"), "protocol_version"),
        (envelope({**action("kv.touch"), "payload": []}), "actions[0].payload"),
        (envelope({**action("kv.touch"), "more": 1}), "actions[0].more"),
        ({"protocol_version": "0.1", "message_id": "m"}, "actions"),
    ],
)  # fmt: skip
def test_envelopes_that_are_refused(app: FastAPI, servers: FakeKvHints, body: dict[str, Any], param: str) -> None:
    check(post(app, "/v1/kv_hints", body, **ACME), 400, param)
    inside = f"kv_hints.{param}"
    check(_chat(app, kv_hints=body), 400, inside)
    assert not servers.sent


def _chat(app: FastAPI, *, headers: dict[str, str] | None = None, **fields: Any) -> httpx.Response:
    body = {"messages": [{"role": "user", "content": MANY}], "max_tokens": 3, **fields}
    return post(app, "/v1/chat/completions", body, headers={**bearer("acme"), **(headers or {})})


def test_nan_is_no_json(app: FastAPI) -> None:
    raw = json.dumps(envelope(action("kv.retain", session_id="s", ttl_s=float("nan"))))
    reply = post(app, "/v1/kv_hints", None, content=raw, headers={**bearer("acme"), "content-type": "application/json"})
    check(reply, 400, code="invalid_json")


def test_a_session_of_ten_megabytes(app: FastAPI) -> None:
    assert _chat(app, prompt_cache_key="x" * 10_000_000).status_code == 413
    check(_chat(app, prompt_cache_key="x" * 100_000), 400, "prompt_cache_key")
    check(_chat(app, headers={"session-id": "x" * 300}), 400, "session-id")


FIELDS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": MANY}]},
    "/v1/completions": {"prompt": MANY},
    "/v1/responses": {"input": MANY},
    "/v1/messages": {"messages": [{"role": "user", "content": MANY}], "max_tokens": 3},
}


@pytest.mark.parametrize("path", FIELDS)
@pytest.mark.parametrize("stream", [False, True])
def test_every_generating_route_claims_and_reports_on_request(
    app: FastAPI, hinted: Harness, servers: FakeKvHints, path: str, stream: bool
) -> None:
    asked = envelope(action("kv.retain", ttl_s=60), action("kv.prefetch", session_id="s"))
    body = {**FIELDS[path], "stream": stream, "kv_hints": asked}
    quiet = post(app, path, body, headers={**bearer("acme"), "session-id": "s"})
    assert quiet.status_code == 200, quiet.text
    assert "kv_hints" not in quiet.text
    assert claim_of(hinted) == SequenceClaim("s", "", (ClaimSpan(ClaimKind.RETAIN, 60),))
    reply = post(app, path, {**body, "return_kv_hints": True}, headers={**bearer("acme"), "session-id": "s"})
    told = reply.json() if not stream else _with_hints(path, reply.text)
    tokens = len(hinted.backend.jobs[-1].sequences[0].prompt)
    kept = {"tokens": tokens - tokens % BLOCK, "of_tokens": tokens, "reason": "applies when the blocks are stored"}
    assert told["kv_hints"] == {
        "message_id": "m",
        "outcomes": [
            {"action_id": "a0", "outcome": "deferred", **kept},
            {"action_id": "a1", "outcome": "accepted", "tokens": 6 * BLOCK, "of_tokens": 6 * BLOCK, "reason": ""},
        ],
    }


def _with_hints(path: str, text: str) -> dict[str, Any]:
    shown = events(text) if path in ("/v1/chat/completions", "/v1/completions") else named_events(text)
    found: list[dict[str, Any]] = [one.get("response", one) for one in shown if "kv_hints" in str(one)]
    return found[-1]


def test_plain_requests_have_no_claim_and_a_session_alone_only_names(app: FastAPI, hinted: Harness) -> None:
    for path, body in FIELDS.items():
        assert post(app, path, body, **ACME).status_code == 200
        assert claim_of(hinted) is None, path
    _chat(app, prompt_cache_key="k")
    assert claim_of(hinted) == SequenceClaim("k")
    messages(app, metadata={"user_id": json.dumps({"session_id": "c"})})
    assert claim_of(hinted) == SequenceClaim("c")


def test_release_of_the_own_session_waits_for_the_end(app: FastAPI, hinted: Harness, servers: FakeKvHints) -> None:
    async def ask() -> tuple[httpx.Response, list[Any]]:
        body = {**FIELDS["/v1/completions"], "kv_hints": envelope(action("kv.release")), "return_kv_hints": True}
        reply = await requested(
            app, "POST", "/v1/completions", json=body, headers={**bearer("acme"), "session-id": "s"}
        )
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return reply, list(servers.sent)

    reply, sent = asyncio.run(ask())
    assert [one["outcome"] for one in reply.json()["kv_hints"]["outcomes"]] == ["deferred"]
    assert [one.verb for _, one in sent] == [HintVerb.RELEASE]


def test_choices_and_prompts_of_one_request(app: FastAPI, hinted: Harness) -> None:
    body = {"prompt": ["one", "two"], "n": 2, "prompt_cache_key": "k", "prompt_cache_retention": "24h"}
    assert post(app, "/v1/completions", body, **ACME).status_code == 200
    claims = [claim_of(hinted, index) for index in range(4)]
    assert [None if one is None else one.branch for one in claims] == ["", None, "#1", None]


def test_without_a_pool_nothing_is_claimed(harness: Harness) -> None:
    reply = post(harness.app, "/v1/kv_hints", envelope(action("kv.touch", session_id="s")))
    assert [(one["outcome"], one["reason"]) for one in reply.json()["outcomes"]] == [
        ("rejected", "this server runs without a KV-cache pool")
    ]
    reply = post(harness.app, "/v1/messages", {**FIELDS["/v1/messages"], "cache_control": {"type": "ephemeral"}})
    assert reply.json()["usage"]["cache_creation_input_tokens"] == 0
    assert claim_of(harness) is None
    check(request(harness.app, "GET", "/pool/sessions"), 404)
    anthropic_error(post(harness.app, "/v1/messages/cache_touch", {"request_id": "r"}), 404, "no request 'r'")


# ---- Anthropic's fields ----------------------------------------------------------------------------------------------

EPHEMERAL = {"type": "ephemeral"}
HOUR = {"type": "ephemeral", "ttl": "1h"}


def test_the_whole_prompt_is_kept_and_counted(app: FastAPI, hinted: Harness) -> None:
    usage = messages(app, cache_control=EPHEMERAL).json()["usage"]
    prompt = len(hinted.backend.jobs[-1].sequences[0].prompt)
    kept = prompt - prompt % BLOCK
    assert usage["cache_creation_input_tokens"] == kept
    assert usage["cache_creation"] == {"ephemeral_5m_input_tokens": kept, "ephemeral_1h_input_tokens": 0}
    assert usage["input_tokens"] == prompt - kept
    claim = claim_of(hinted)
    assert claim is not None
    assert claim.session.startswith("request:req-")
    assert claim.spans == (ClaimSpan(ClaimKind.RETAIN, 300),)
    hinted.script_of = lambda _: Script(hinted.say("Once").tokens, cached_tokens=2 * BLOCK)
    usage = messages(app, cache_control=HOUR).json()["usage"]
    assert usage["cache_read_input_tokens"] == 2 * BLOCK
    assert usage["cache_creation"]["ephemeral_1h_input_tokens"] == kept - 2 * BLOCK
    assert sum(usage[key] for key in usage if key.endswith("input_tokens")) == prompt
    assert "cache_creation" not in messages(app).json()["usage"]


def test_breakpoints_are_exact_to_the_block(app: FastAPI, hinted: Harness) -> None:
    """Another request with the same beginning shares exactly the blocks that are kept."""
    system = [
        {"type": "text", "text": MANY, "cache_control": HOUR},
        {"type": "text", "text": "Be brief.", "cache_control": EPHEMERAL},
    ]
    turns = [
        {"role": "user", "content": [{"type": "text", "text": "first"}, {"type": "text", "text": MANY}]},
        {"role": "assistant", "content": "Once upon a time"},
        {"role": "user", "content": [{"type": "text", "text": "go on", "cache_control": EPHEMERAL}]},
    ]
    turns[0]["content"][0]["cache_control"] = EPHEMERAL  # type: ignore[index]
    assert messages(app, system=system, messages=turns).status_code == 200
    claim, whole = claim_of(hinted), hinted.backend.jobs[-1].sequences[0].prompt
    assert claim is not None
    ends = [span.tokens for span in claim.spans]
    assert [span.ttl_s for span in claim.spans] == [3600, 300, 300, 300]
    assert ends[-1] == 0, "all"
    texts = [MANY, MANY + "\nBe brief.", MANY + "\nBe brief.<|user|>user: first"]
    tokenizer = hinted.model.tokenizer
    for end, text in zip(ends, texts, strict=False):
        expected = len(tokenizer.encode(f"<|bos|><|user|>system: {text}", add_special_tokens=False))
        assert 0 <= expected - end < BLOCK + 2, (end, expected)
        assert end % BLOCK == 0
    messages(app, system=system, messages=[{"role": "user", "content": "something else"}])
    other = hinted.backend.jobs[-1].sequences[0].prompt
    assert other[: ends[1]] == whole[: ends[1]]


def test_output_does_not_depend_on_breakpoints(app: FastAPI, hinted: Harness) -> None:
    system: list[dict[str, Any]] = [{"type": "text", "text": MANY}, {"type": "text", "text": " "}]
    tools = [{"name": "t", "input_schema": {"type": "object"}}] if hinted.model.tool_family else []
    more = {"tools": tools} if tools else {}
    messages(app, system=system, **more)
    plain = hinted.prompt()
    for block in system:
        block["cache_control"] = EPHEMERAL
    messages(app, system=system, cache_control=EPHEMERAL, evict_on_complete=False, **more)
    assert hinted.prompt() == plain


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"cache_control": {"type": "ephemeral", "ttl": "2h"}}, "'cache_control.ttl' must be one of 5m, 1h"),
        ({"cache_control": {"type": "ephemeral", "ttl": 300}}, "'cache_control.ttl'"),
        ({"cache_control": {"type": "for ever"}}, "'cache_control.type'"),
        ({"cache_control": {"type": "ephemeral", "evict_on_complete": 1}}, "evict_on_complete"),
        ({"evict_on_complete": "yes"}, "evict_on_complete"),
        (
            {"system": [{"type": "text", "text": "a", "cache_control": EPHEMERAL}], "cache_control": HOUR},
            "'cache_control' has ttl 1h after one with ttl 5m",
        ),
        (
            {"system": [{"type": "text", "text": "a", "cache_control": EPHEMERAL}] * 4, "cache_control": EPHEMERAL},
            "'cache_control' is one too many",
        ),
        ({"system": [{"type": "text", "text": "a", "cache_control": "x"}]}, "'system[0].cache_control.type'"),
        ({"metadata": {"user_id": json.dumps({"session_id": "x" * 300})}}, "metadata.user_id"),
        ({"kv_hints": {}}, "kv_hints.protocol_version"),
    ],
)  # fmt: skip
def test_what_messages_refuse(app: FastAPI, hinted: Harness, fields: dict[str, Any], words: str) -> None:
    anthropic_error(messages(app, **fields), 400, words)
    assert not hinted.backend.jobs


def test_the_session_ends_with_the_response(app: FastAPI, servers: FakeKvHints, hinted: Harness) -> None:
    async def ask(fields: dict[str, Any]) -> None:
        body = {**FIELDS["/v1/messages"], **fields}
        headers = {**bearer("acme"), "x-claude-code-session-id": "s", "x-claude-code-agent-id": "agent"}
        assert (await requested(app, "POST", "/v1/messages", json=body, headers=headers)).status_code == 200
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    for fields in ({"evict_on_complete": True}, {"cache_control": {"type": "ephemeral", "evict_on_complete": True}}):
        servers.held[("acme", "s", "agent")] = 2
        asyncio.run(ask(fields))
        assert servers.held == {("acme", "s", ""): 4}
        assert claim_of(hinted) == SequenceClaim("s", "agent")


def test_touch(app: FastAPI, servers: FakeKvHints) -> None:
    def touch(name: str, key: str = "acme", **headers: str) -> httpx.Response:
        return post(app, "/v1/messages/cache_touch", {"request_id": name}, headers={**bearer(key), **headers})

    reply = messages(app, cache_control=EPHEMERAL, headers={"x-claude-code-session-id": "s"})
    for name in (reply.headers["request-id"], reply.json()["id"]):
        touched = touch(name)
        assert touched.status_code == 200, touched.text
        assert touched.json() == {
            "type": "cache_touch", "request_id": name, "outcome": "accepted", "tokens": 4 * BLOCK,
        }  # fmt: skip
        anthropic_error(touch(name, "umbrella"), 404, "no request")
    anthropic_error(touch("req-unknown"), 404, "no request 'req-unknown'")
    del servers.held[("acme", "s", "")]
    anthropic_error(touch(reply.headers["request-id"]), 404, "no request")
    # Another gateway derives the session of a request that named none, and takes a named one from the header.
    servers.held[("acme", "request:req-1", "")] = 1
    assert touch("req-1").json()["tokens"] == BLOCK
    servers.held[("acme", "claude", "")] = 3
    assert touch("req-elsewhere", **{"x-claude-code-session-id": "claude"}).json()["tokens"] == 3 * BLOCK
    anthropic_error(post(app, "/v1/messages/cache_touch", {}, **ACME), 400, "request_id")


# ---- OpenAI's fields -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "ttl_s"),
    [
        ({"prompt_cache_retention": "in_memory"}, 600),
        ({"prompt_cache_retention": "24h"}, 3600),
        ({"prompt_cache_options": {"ttl": "30m"}}, 1800),
        ({"prompt_cache_options": {"mode": "explicit"}}, None),
    ],
)
def test_retention_and_its_usage(app: FastAPI, hinted: Harness, fields: dict[str, Any], ttl_s: float | None) -> None:
    hinted.script_of = lambda _: Script(hinted.say("Once").tokens, cached_tokens=BLOCK)
    usage = _chat(app, prompt_cache_key="k", **fields).json()["usage"]
    claim, prompt = claim_of(hinted), len(hinted.backend.jobs[-1].sequences[0].prompt)
    assert claim is not None
    assert [span.ttl_s for span in claim.spans] == ([] if ttl_s is None else [ttl_s])
    written = prompt - prompt % BLOCK - BLOCK
    assert usage["prompt_tokens_details"].get("cache_write_tokens") == (None if ttl_s is None else written)
    reply = post(app, "/v1/responses", {"input": MANY, "prompt_cache_key": "k", **fields}, **ACME)
    details = reply.json()["usage"]["input_tokens_details"]
    assert details["cache_write_tokens"] > 0 if ttl_s is not None else details["cache_write_tokens"] == 0


def test_retention_and_options_exclude_each_other(app: FastAPI, hinted: Harness) -> None:
    both = {"prompt_cache_retention": "24h", "prompt_cache_options": {"ttl": "30m"}}
    check(_chat(app, **both), 400, "prompt_cache_retention")
    check(post(app, "/v1/responses", {"input": "a", **both}, **ACME), 400, "prompt_cache_retention")
    check(_chat(app, prompt_cache_options={"ttl": "5 m"}), 400, "prompt_cache_options.ttl")
    check(_chat(app, prompt_cache_retention="for ever"), 400, "prompt_cache_retention")
    assert not hinted.backend.jobs


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses"])
def test_marked_parts(app: FastAPI, hinted: Harness, path: str) -> None:
    kind = "text" if "chat" in path else "input_text"
    mark = {"prompt_cache_breakpoint": {"mode": "explicit"}}
    content = [{"type": kind, "text": MANY, **mark}, {"type": kind, "text": "and more " * 9}]
    given = [{"role": "user", "content": content}]
    body = {"messages" if "chat" in path else "input": given, "prompt_cache_options": {"mode": "explicit"}}
    reply = post(app, path, body, **ACME)
    assert reply.status_code == 200, reply.text
    assert "x-cloudmatrix-warning" not in reply.headers
    claim = claim_of(hinted)
    assert claim is not None
    expected = len(hinted.model.tokenizer.encode(f"<|bos|><|user|>user: {MANY}", add_special_tokens=False))
    (span,) = claim.spans
    assert (span.ttl_s, 0 <= expected - span.tokens < BLOCK + 2) == (1800, True)


def test_a_conversation_of_responses_is_one_session(app: FastAPI, hinted: Harness, servers: FakeKvHints) -> None:
    first = post(app, "/v1/responses", {"input": "hi"}, **ACME).json()["id"]
    second = post(app, "/v1/responses", {"input": "go on", "previous_response_id": first}, **ACME).json()["id"]
    assert claim_of(hinted) == SequenceClaim(first)
    post(app, "/v1/responses", {"input": "on", "previous_response_id": second, "prompt_cache_retention": "24h"}, **ACME)
    claim = claim_of(hinted)
    assert claim is not None
    assert (claim.session, len(claim.spans)) == (first, 1)


def test_a_summary_ends_the_claims_of_what_it_replaces(app: FastAPI, hinted: Harness, servers: FakeKvHints) -> None:
    async def ask() -> httpx.Response:
        items = [{"role": "user", "content": MANY}, {"type": "compaction_trigger"}]
        body = {"input": items, "prompt_cache_key": "s", "prompt_cache_retention": "24h"}
        reply = await requested(app, "POST", "/v1/responses", json=body, **ACME)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return reply

    assert asyncio.run(ask()).status_code == 200
    assert claim_of(hinted) == SequenceClaim("s")
    assert [(name, one.verb, one.branch) for name, one in servers.sent] == [("acme", HintVerb.RELEASE, "")]
    assert servers.held == {("acme", "s", "agent"): 2}


# ---- sessions --------------------------------------------------------------------------------------------------------


def test_each_tenant_lists_its_own_sessions(app: FastAPI, servers: FakeKvHints) -> None:
    servers.held[("umbrella", "u", "")] = 1

    def listed(key: str, query: str = "") -> set[tuple[str, str]]:
        reply = request(app, "GET", f"/pool/sessions{query}", headers=bearer(key))
        assert reply.status_code == 200, reply.text
        return {(one["namespace"], one["session"]) for one in reply.json()["sessions"]}

    assert listed("acme") == {("acme", "s")}
    assert listed("umbrella", "?namespace=umbrella") == {("umbrella", "u")}
    assert listed("root") == {("acme", "s"), ("umbrella", "u")}
    assert listed("root", "?namespace=acme") == {("acme", "s")}
    check(request(app, "GET", "/pool/sessions?namespace=acme", headers=bearer("umbrella")), 403)


def test_outcomes_are_counted_under_bounded_names(app: FastAPI, hinted: Harness) -> None:
    post(app, "/v1/kv_hints", envelope(action("kv.touch", session_id="s"), action("x" * 100)), **ACME)
    page = hinted.metrics.render().decode()
    assert 'action="touch",engine="0",model_name="tiny",outcome="accepted"' in page
    assert 'action="unknown",engine="0",model_name="tiny",outcome="rejected"' in page
    assert "xxxx" not in page
