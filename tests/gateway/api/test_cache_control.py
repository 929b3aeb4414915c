"""Anthropic's cache fields over HTTP: breakpoints, usage, the end of a session, touch."""

import asyncio
import json
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from serving.values.kv_hints import ClaimKind, ClaimSpan
from tests.fakes.backend import Script
from tests.fakes.kv_hints import FakeKvHints
from tests.gateway.api.hinted import (
    ACME,
    BLOCK,
    FIELDS,
    MANY,
    anthropic_error,
    claim_of,
    messages,
)
from tests.gateway.api.support import Harness, bearer, post, requested

# ---- Anthropic's fields ----------------------------------------------------------------------------------------------

EPHEMERAL = {"type": "ephemeral"}
HOUR = {"type": "ephemeral", "ttl": "1h"}


def _result(*marks: Any) -> dict[str, Any]:
    inner = [{"type": "text", "text": "a", "cache_control": mark} for mark in marks]
    return {"type": "tool_result", "tool_use_id": "a", "content": inner}


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


def test_a_prompt_that_is_cut_tells_nothing_about_others(app: FastAPI, hinted: Harness) -> None:
    mark = {"prompt_cache_breakpoint": {"mode": "explicit"}}
    content = [{"type": "text", "text": f"Cut. {MANY}", **mark}, {"type": "text", "text": "and more"}]
    body = {"messages": [{"role": "user", "content": content}]}
    for more, kept in (({"truncate_prompt_tokens": 40}, False), ({}, True)):
        assert post(app, "/v1/chat/completions", {**body, **more}, **ACME).status_code == 200
        assert (claim_of(hinted) is not None) == kept


def test_output_does_not_depend_on_breakpoints(app: FastAPI, hinted: Harness) -> None:
    system: list[dict[str, Any]] = [{"type": "text", "text": MANY}, {"type": "text", "text": " "}]
    tools = [{"name": "t", "input_schema": {"type": "object"}}] if hinted.model.tool_family else []
    more: dict[str, Any] = {"tools": tools} if tools else {}
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
        ({"messages": [{"role": "user", "content": [_result(*[EPHEMERAL] * 5)]}]},
         "'messages[0].content[0].content[4].cache_control' is one too many"),
        ({"messages": [{"role": "user", "content": [{**_result({}), "cache_control": EPHEMERAL}]}]},
         "'messages[0].content[0].content[0].cache_control.type'"),
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
        assert claim_of(hinted) is None
        assert hinted.backend.jobs[-1].session == "s", "for the order of the queue"


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
