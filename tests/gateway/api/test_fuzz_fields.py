"""Any value is accepted in fields of other routes, and no value of a field makes the server fail."""

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from serving.gateway.api.foreign_fields import HARMLESS, KWARGS, MESSAGE, REFUSED, TOKENIZING
from serving.gateway.api.openapi import BODIES
from tests.gateway.api.support import Harness, check, post

SCALARS = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(-1e9, 1e9) | st.text(max_size=8)
JSON = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)
HI = {"messages": [{"role": "user", "content": "hi"}]}
ROUTES: dict[str, dict[str, Any]] = {
    "/abort_requests": {"request_ids": ["none"]},
    "/v1/kv_hints": {
        "protocol_version": "0.1",
        "message_id": "m",
        "actions": [{"action_id": "a", "action_type": "kv.touch", "payload": {"session_id": "s"}}],
    },
    "/v1/messages/cache_touch": {"request_id": "none"},
    "/v1/chat/completions": HI,
    "/v1/chat/completions/render": HI,
    "/v1/completions": {"prompt": "hi"},
    "/v1/completions/render": {"prompt": "hi"},
    "/v1/messages": {**HI, "max_tokens": 3},
    "/v1/messages/count_tokens": HI,
    "/v1/responses": {"input": "hi"},
    "/v1/responses/input_tokens": {"input": "hi"},
    "/v1/responses/compact": {"input": "hi"},
    "/inference/v1/generate": {"token_ids": [5], "sampling_params": {}},
    "/tokenize": {"prompt": "hi"},
    "/detokenize": {"tokens": [5]},
    "/v1/batches": {"input_file_id": "none", "endpoint": "/v1/completions", "completion_window": "24h"},
    "/pool/audit": {},
    "/query": {"block_size": 16, "token_ids": [5]},
    "/pool/namespaces/default": {"weight": 1.0},
}
"""Every route that reads a body, with one that is right."""
DECLARED = sorted({name for body in BODIES.values() for name in body.model_fields})
FOREIGN = sorted({*HARMLESS, *KWARGS, *MESSAGE, *REFUSED, *TOKENIZING})
OF_EVERY_KIND: list[Any] = [
    True,
    7,
    -1.5,
    "",
    "text",
    [],
    [1, None],
    ["x"],
    [{"type": []}],
    {},
    {"a": [1]},
    {"type": {}},
]
LOOKED_INTO = (
    "chat_template_kwargs", "stream_options", "messages", "thinking", "output_config", "text", "reasoning",
    "sampling_params", "request_id", "tools", "tool_choice", "metadata", "context_management",
    "cache_control", "system",
)  # fmt: skip
"""Fields whose contents are read before, or in addition to, the wire model."""


def fine(harness: Harness, path: str, more: dict[str, Any]) -> None:
    reply = post(harness.app, path, {**ROUTES[path], **more})
    assert reply.status_code < 500 or (path.startswith("/pool") and reply.status_code == 503), reply.text


def test_every_route_with_a_body_is_tried(harness: Harness) -> None:
    found = set()
    for path, methods in harness.app.openapi()["paths"].items():
        if any("application/json" in one.get("requestBody", {}).get("content", {}) for one in methods.values()):
            found.add(path)
    assert found == {path.replace("/default", "/{name}") for path in ROUTES}


@pytest.mark.parametrize("path", ROUTES)
def test_a_field_of_every_kind(refusing: Harness, path: str) -> None:
    for name in LOOKED_INTO:
        for value in OF_EVERY_KIND:
            fine(refusing, path, {name: value})


@pytest.mark.parametrize(
    "path", [path for path in ROUTES if path.startswith(("/v1", "/tok", "/detok")) and path != "/v1/batches"]
)
def test_template_variables_that_are_no_object(refusing: Harness, path: str) -> None:
    reply = post(refusing.app, path, {**ROUTES[path], "chat_template_kwargs": [1]})
    if reply.status_code != 200:
        check(reply, 400, "chat_template_kwargs") if "/messages" not in path else None
    else:
        assert "chat_template_kwargs" in reply.headers["x-cloudmatrix-warning"]


@settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.sampled_from(sorted(ROUTES)),
    st.dictionaries(st.sampled_from(DECLARED) | st.sampled_from(FOREIGN), JSON, max_size=3),
)
def test_fields_of_other_routes_and_servers(refusing: Harness, path: str, more: dict[str, Any]) -> None:
    fine(refusing, path, {name: value for name, value in more.items() if name not in ROUTES[path]})
