"""Requests with KV hints, of the tenant acme, to an application whose memory servers are a fake."""

from typing import Any

import httpx
from fastapi import FastAPI

from serving.values.kv_hints import SequenceClaim
from tests.gateway.api.support import Harness, bearer, post

BLOCK = 8
MANY = "Tell me a story about a cat, a bird and the old tree! " * 3


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


def chat(app: FastAPI, *, headers: dict[str, str] | None = None, **fields: Any) -> httpx.Response:
    body = {"messages": [{"role": "user", "content": MANY}], "max_tokens": 3, **fields}
    return post(app, "/v1/chat/completions", body, headers={**bearer("acme"), **(headers or {})})


FIELDS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": MANY}]},
    "/v1/completions": {"prompt": MANY},
    "/v1/responses": {"input": MANY},
    "/v1/messages": {"messages": [{"role": "user", "content": MANY}], "max_tokens": 3},
}
