"""KV hints over HTTP: the envelope, OpenAI's fields, sessions, usage, and what is refused."""

import asyncio
import json
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from serving.values.kv_hints import ClaimKind, ClaimSpan, HintVerb, SequenceClaim
from tests.fakes.backend import Script
from tests.fakes.kv_hints import FakeKvHints
from tests.gateway.api.hinted import (
    ACME,
    BLOCK,
    FIELDS,
    MANY,
    action,
    anthropic_error,
    chat,
    claim_of,
    envelope,
    messages,
)
from tests.gateway.api.support import Harness, bearer, check, events, named_events, post, request, requested

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
    check(chat(app, kv_hints=body), 400, inside)
    assert not servers.sent


def test_nan_is_no_json(app: FastAPI) -> None:
    raw = json.dumps(envelope(action("kv.retain", session_id="s", ttl_s=float("nan"))))
    reply = post(app, "/v1/kv_hints", None, content=raw, headers={**bearer("acme"), "content-type": "application/json"})
    check(reply, 400, code="invalid_json")


def test_a_session_of_ten_megabytes(app: FastAPI) -> None:
    assert chat(app, prompt_cache_key="x" * 10_000_000).status_code == 413
    check(chat(app, prompt_cache_key="x" * 100_000), 400, "prompt_cache_key")
    check(chat(app, headers={"session-id": "x" * 300}), 400, "session-id")


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
    chat(app, prompt_cache_key="k")
    assert claim_of(hinted) is None, "it would supersede the claims of the session's other requests"
    messages(app, metadata={"user_id": json.dumps({"session_id": "c"})})
    assert claim_of(hinted) is None
    messages(app, metadata={"user_id": json.dumps({"session_id": "c"})}, cache_control={"type": "ephemeral"})
    claim = claim_of(hinted)
    assert claim is not None
    assert claim.session == "c"


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


def test_a_tenants_own_limit_of_time(app: FastAPI, hinted: Harness, servers: FakeKvHints) -> None:
    asked = envelope(action("kv.retain", ttl_s=600))
    of_acme, of_umbrella = (
        chat(app, headers=bearer(name), kv_hints=asked, return_kv_hints=True).json()["kv_hints"]["outcomes"][0]
        for name in ("acme", "umbrella")
    )
    assert of_acme["outcome"] == "deferred"
    assert (of_umbrella["outcome"], of_umbrella["reason"]) == ("clipped", "ttl_s is limited to 60")
    claim = claim_of(hinted)
    assert claim is not None
    assert claim.spans == (ClaimSpan(ClaimKind.RETAIN, 60),)
    servers.held["umbrella", "s", ""] = 1
    reply = post(
        app, "/v1/kv_hints", envelope(action("kv.retain", session_id="s", ttl_s=600)), headers=bearer("umbrella")
    )
    assert reply.json()["outcomes"][0]["outcome"] == "clipped"


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
    usage = chat(app, prompt_cache_key="k", **fields).json()["usage"]
    claim, prompt = claim_of(hinted), len(hinted.backend.jobs[-1].sequences[0].prompt)
    assert (None if claim is None else [span.ttl_s for span in claim.spans]) == (None if ttl_s is None else [ttl_s])
    written = prompt - prompt % BLOCK - BLOCK
    assert usage["prompt_tokens_details"].get("cache_write_tokens") == (None if ttl_s is None else written)
    reply = post(app, "/v1/responses", {"input": MANY, "prompt_cache_key": "k", **fields}, **ACME)
    details = reply.json()["usage"]["input_tokens_details"]
    assert details["cache_write_tokens"] > 0 if ttl_s is not None else details["cache_write_tokens"] == 0


def test_retention_and_options_exclude_each_other(app: FastAPI, hinted: Harness) -> None:
    both: dict[str, Any] = {"prompt_cache_retention": "24h", "prompt_cache_options": {"ttl": "30m"}}
    check(chat(app, **both), 400, "prompt_cache_retention")
    check(post(app, "/v1/responses", {"input": "a", **both}, **ACME), 400, "prompt_cache_retention")
    check(chat(app, prompt_cache_options={"ttl": "5 m"}), 400, "prompt_cache_options.ttl")
    check(chat(app, prompt_cache_retention="for ever"), 400, "prompt_cache_retention")
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
    post(app, "/v1/responses", {"input": "on", "previous_response_id": second, "prompt_cache_retention": "24h"}, **ACME)
    claim = claim_of(hinted)
    assert claim is not None
    assert (claim.session, len(claim.spans)) == (first, 1)


def test_conversations_that_share_a_cache_key_do_not_supersede_each_other(app: FastAPI, hinted: Harness) -> None:
    def branch(*words: str) -> str:
        turns = [{"role": "assistant" if index % 2 else "user", "content": one} for index, one in enumerate(words)]
        chat(app, messages=turns, prompt_cache_key="app", prompt_cache_retention="24h")
        claim = claim_of(hinted)
        assert claim is not None
        assert claim.session == "app"
        return claim.branch

    assert branch("hi") == branch("hi", "yes?", "go on") != branch("ho") != ""


def test_a_summary_ends_the_claims_of_what_it_replaces(app: FastAPI, hinted: Harness, servers: FakeKvHints) -> None:
    async def ask() -> httpx.Response:
        items = [{"role": "user", "content": MANY}, {"type": "compaction_trigger"}]
        body = {"input": items, "prompt_cache_key": "key", "prompt_cache_retention": "24h"}
        headers = {**bearer("acme"), "session-id": "s"}
        reply = await requested(app, "POST", "/v1/responses", json=body, headers=headers)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return reply

    assert asyncio.run(ask()).status_code == 200
    assert claim_of(hinted) is None
    assert [(name, one.verb, one.branch) for name, one in servers.sent] == [("acme", HintVerb.RELEASE, "")]
    assert servers.held == {("acme", "s", "agent"): 2}


# ---- sessions --------------------------------------------------------------------------------------------------------


def test_each_tenant_lists_its_own_sessions(app: FastAPI, servers: FakeKvHints) -> None:
    servers.held[("umbrella", "u", "")] = 1

    def listed(key: str, query: str = "") -> set[tuple[str, str]]:
        reply = request(app, "GET", f"/pool/sessions{query}", headers=bearer(key))
        assert reply.status_code == 200, reply.text
        return {(reply.json()["namespace"], one["session"]) for one in reply.json()["sessions"]}

    assert listed("acme") == {("acme", "s")}
    assert listed("umbrella", "?namespace=umbrella") == {("umbrella", "u")}
    assert listed("root") == set()
    assert listed("root", "?namespace=acme") == {("acme", "s")}
    check(request(app, "GET", "/pool/sessions?namespace=acme", headers=bearer("umbrella")), 403)


def test_outcomes_are_counted_under_bounded_names(app: FastAPI, hinted: Harness) -> None:
    post(app, "/v1/kv_hints", envelope(action("kv.touch", session_id="s"), action("x" * 100)), **ACME)
    page = hinted.metrics.render().decode()
    assert 'action="touch",engine="0",model_name="tiny",outcome="accepted"' in page
    assert 'action="unknown",engine="0",model_name="tiny",outcome="rejected"' in page
    assert "xxxx" not in page
