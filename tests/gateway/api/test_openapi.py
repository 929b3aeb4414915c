"""`/openapi.json` describes every response: random requests by schemathesis, and manual ones with all options."""

import re
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import jsonschema_rs
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import BaseSchema, GenerationMode, checks

from serving.errors import EngineError, OverloadedError, UnavailableError
from serving.gateway.api.admin.timeline_routes import timeline_router
from serving.gateway.api.settings import ApiSettings, ServedModel, hash_api_key
from serving.values.sequence import PoolUse
from tests.fakes.backend import Script
from tests.fakes.kv_hints import FakeKvHints
from tests.fakes.pool_admin import two_servers
from tests.fakes.timelines import KeptTimelines
from tests.gateway.api.support import Harness, chat, complete, events, named_events, post, request

CONFORMANCE = [
    checks.not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_headers_conformance,
    checks.response_schema_conformance,
]
"""The other checks of schemathesis require that a schema lists all that a body must not contain; prompts have no
such list.
"""
ROUTES = [
    ("GET", "/health"), ("GET", "/ping"), ("POST", "/ping"), ("GET", "/-/healthz"), ("GET", "/ready"),
    ("GET", "/version"),
    ("GET", "/metrics"), ("GET", "/load"), ("GET", "/v1/models"), ("GET", "/v1/models/{name}"), ("POST", "/tokenize"),
    ("POST", "/detokenize"), ("POST", "/v1/chat/completions"), ("POST", "/v1/completions"),
    ("POST", "/inference/v1/generate"), ("POST", "/v1/chat/completions/render"), ("POST", "/v1/completions/render"),
    ("GET", "/tokenizer_info"), ("POST", "/v1/responses"), ("POST", "/v1/responses/input_tokens"),
    ("POST", "/v1/responses/compact"),
    ("GET", "/v1/responses/{response_id}"), ("DELETE", "/v1/responses/{response_id}"),
    ("POST", "/v1/responses/{response_id}/cancel"), ("GET", "/v1/responses/{response_id}/input_items"),
    ("POST", "/v1/messages"), ("POST", "/v1/messages/count_tokens"), ("GET", "/pool"),
    ("POST", "/pool/namespaces/{name}"), ("DELETE", "/pool/namespaces/{name}"), ("POST", "/pool/audit"),
    ("POST", "/query"),
    ("GET", "/v1/requests"), ("GET", "/v1/requests/{request_id}/timeline"),
    ("POST", "/v1/requests/{request_id}/cancel"), ("POST", "/abort_requests"),
    ("POST", "/v1/files"), ("GET", "/v1/files"), ("GET", "/v1/files/{file_id}"), ("DELETE", "/v1/files/{file_id}"),
    ("GET", "/v1/files/{file_id}/content"), ("POST", "/v1/batches"), ("GET", "/v1/batches"),
    ("GET", "/v1/batches/{batch_id}"), ("POST", "/v1/batches/{batch_id}/cancel"),
    ("POST", "/v1/kv_hints"), ("POST", "/v1/messages/cache_touch"), ("GET", "/pool/sessions"),
]  # fmt: skip


@pytest.fixture(scope="module")
def application(served: ServedModel) -> Harness:
    return with_timelines(
        Harness(served, ApiSettings(version="1", per_request_metrics=True), two_servers(), hints=FakeKvHints())
    )


@pytest.fixture
def whole(application: Harness) -> Harness:
    """With all options: a pool, and times of requests."""
    return application.renewed()


@pytest.fixture(scope="module")
def schema(application: Harness) -> BaseSchema:
    """The document parsed by schemathesis, which takes longer than ten requests."""
    return schemathesis.openapi.from_asgi("/openapi.json", application.app)


def with_timelines(harness: Harness) -> Harness:
    harness.app.include_router(timeline_router(KeptTimelines(("mine", "default", 1.5))))
    return harness


@pytest.fixture(scope="module")
def document(application: Harness) -> dict[str, Any]:
    described: dict[str, Any] = request(application.app, "GET", "/openapi.json").json()
    return described


def conforms(document: Mapping[str, Any], name: str, value: object) -> None:
    """Raises: ValidationError if `value` does not match the component `name`."""
    jsonschema_rs.validate({"$ref": f"#/components/schemas/{name}", "components": document["components"]}, value)


def test_every_route_is_described(document: dict[str, Any]) -> None:
    there = {(method.upper(), path) for path, methods in document["paths"].items() for method in methods}
    assert there == set(ROUTES)


EXAMPLES = settings().max_examples // 12
EXAMPLES_WITHOUT_BODY = settings().max_examples // 30
BODIES = [path for method, path in ROUTES if method == "POST" and path != "/ping" and "cancel" not in path]


@pytest.mark.parametrize(
    ("method", "path", "mode"),
    [
        *((method, path, GenerationMode.POSITIVE) for method, path in ROUTES),
        *(("POST", path, GenerationMode.NEGATIVE) for path in BODIES),
    ],
)
@pytest.mark.usefixtures("whole")
def test_whatever_is_asked_is_answered_as_described(
    schema: BaseSchema, method: str, path: str, mode: GenerationMode
) -> None:
    """The negative mode sends what the document forbids, which must be refused."""
    operation = schema[path][method]
    more = [] if mode.is_positive else [checks.negative_data_rejection]

    examples = EXAMPLES if path in BODIES else EXAMPLES_WITHOUT_BODY

    @settings(max_examples=examples, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
    @given(case=operation.as_strategy(generation_mode=mode))
    def ask(case: schemathesis.Case) -> None:
        case.call_and_validate(checks=CONFORMANCE + more)

    ask()


def fails_then(whole: Harness) -> Iterator[int | None]:
    """A model that ends well, then one that fails after two tokens. Yields: the number of tokens before its failure."""
    for fail_after in (None, 2):
        script = Script(whole.say("Once upon a").tokens, fail_after=fail_after, error=EngineError("broken"))
        whole.script_of = partial(lambda script, _: script, script)
        yield fail_after


@pytest.mark.parametrize("more", [{}, {"stream_options": {"include_usage": True}}, {"n": 2, "logprobs": False}])
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_streams_are_as_described_even_when_they_fail(
    whole: Harness, schema: BaseSchema, path: str, more: dict[str, Any]
) -> None:
    operation = schema[path]["POST"]
    asked: dict[str, Any] = (
        {"prompt": "a"} if path == "/v1/completions" else {"messages": [{"role": "user", "content": "a"}]}
    )
    for fail_after in fails_then(whole):
        reply = operation.Case(body={**asked, "stream": True, **more}).call_and_validate(checks=CONFORMANCE)
        assert (b'"error"' in reply.content) is (fail_after is not None)


def test_what_a_body_may_not_hold_is_described_as_far_as_it_can(document: dict[str, Any]) -> None:
    accepted: dict[str, list[dict[str, Any]]] = {
        "CompletionRequest": [{"prompt": "a", "logprobs": False}, {"prompt": "a", "response_format": {"type": "text"}}],
        "ChatCompletionRequest": [{"messages": [{"role": "user", "content": "a"}], "tool_choice": "auto"}],
        "TokenizeRequest": [
            {"prompt": ""},
            {"prompt": None, "messages": []},
            {"messages": [], "add_special_tokens": True},
        ],
        "MessagesRequest": [{"messages": [{"role": "user", "content": "a"}], "max_tokens": 1, "tool_choice": None}],
        "ResponsesRequest": [{"input": "a", "text": {"format": None}}, {"input": [{}], "tool_choice": "auto"}],
        "GenerateTokensRequest": [{"token_ids": [5], "sampling_params": {"logprobs": -1}}],
        "PoolNamespaceRequest": [{"weight": 2.0}, {"quota_mib": 4, "weight": None}],
    }
    refused: dict[str, list[dict[str, Any]]] = {
        "CompletionRequest": [{"prompt": "a", "logprobs": True}, {"prompt": "a", "response_format": {"type": "json"}}],
        "ChatCompletionRequest": [{"messages": [{"role": "user", "content": "a"}], "tool_choice": "always"}],
        "TokenizeRequest": [{}, {"prompt": "a", "messages": []}, {"prompt": None}],
        "MessagesRequest": [{"messages": [{"role": "user", "content": "a"}]}],
        "ResponsesRequest": [{}, {"input": []}, {"input": "a", "tool_choice": 5}],
        "GenerateTokensRequest": [{"token_ids": []}, {"token_ids": [5], "sampling_params": {"logprobs": -2}}],
        "PoolNamespaceRequest": [{}],
    }
    for name, bodies in accepted.items():
        for body in bodies:
            conforms(document, name, body)
    for name, bodies in refused.items():
        for body in bodies:
            with pytest.raises(jsonschema_rs.ValidationError):
                conforms(document, name, body)


EVENT_OF = {
    f"response.{name}": model
    for names, model in (
        ("output_item.added output_item.done", "ResponseItemEvent"),
        ("content_part.added content_part.done", "ResponsePartEvent"),
        ("output_text.delta", "ResponseTextDelta"),
        ("output_text.done", "ResponseTextDone"),
    )
    for name in names.split()
}
"""Component that describes an event of a response."""

FULL = {
    "logprobs": 3, "prompt_logprobs": 1, "return_token_ids": True, "return_replicas": True, "n": 2, "seed": 1
}  # fmt: skip


def test_answers_with_everything_in_them(whole: Harness, document: dict[str, Any]) -> None:
    whole.script_of = lambda _: whole.say("Once 🙂", pool=PoolUse(4, 2, "error"), resumptions=1, masked=1)
    conforms(document, "Completion", complete(whole.app, echo=True, **FULL).json())
    conforms(document, "ChatCompletion", chat(whole.app, **{**FULL, "logprobs": True, "top_logprobs": 2}).json())
    conforms(document, "ChatCompletion", chat(whole.app, stop=["up"]).json())
    body = {"prompt": "a dog", "return_token_strs": True}
    conforms(document, "Tokenized", post(whole.app, "/tokenize", body).json())
    change = post(whole.app, "/pool/namespaces/acme", {"quota_mib": 5}).json()
    conforms(document, "NamespaceChanged", change)
    conforms(document, "PoolDeleted", request(whole.app, "DELETE", "/pool/namespaces/acme").json())


@pytest.mark.parametrize("more", [{}, {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}])
def test_every_event_of_a_stream(whole: Harness, document: dict[str, Any], more: dict[str, Any]) -> None:
    whole.script_of = lambda _: whole.say("Once 🙂")
    for name, reply in (
        ("CompletionChunk", complete(whole.app, stream=True, logprobs=2, return_token_ids=True, echo=True, **more)),
        ("ChatCompletionChunk", chat(whole.app, stream=True, logprobs=True, return_token_ids=True, **more)),
        ("ChatCompletionChunk", chat(whole.app, stream=True, **more)),
    ):
        assert reply.headers["content-type"].partition(";")[0] == "text/event-stream"
        *chunks, end = events(reply.text)
        assert end == "[DONE]"
        for chunk in chunks:
            conforms(document, name, chunk)
    whole.script_of = lambda _: Script(whole.say("Once upon a").tokens, fail_after=2, error=EngineError("broken"))
    conforms(document, "ErrorAnswer", events(chat(whole.app, stream=True).text)[-2])


def test_messages_are_as_described(whole: Harness, schema: BaseSchema, document: dict[str, Any]) -> None:
    asked: dict[str, Any] = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 9}
    conforms(document, "MessageAnswer", post(whole.app, "/v1/messages", asked).json())
    conforms(
        document, "CountedTokens", post(whole.app, "/v1/messages/count_tokens", {"messages": asked["messages"]}).json()
    )
    conforms(document, "MessagesErrorAnswer", post(whole.app, "/v1/messages", {}).json())
    operation = schema["/v1/messages"]["POST"]
    for fail_after in fails_then(whole):
        reply = operation.Case(body={**asked, "stream": True}).call_and_validate(checks=CONFORMANCE)
        assert (b"event: error" in reply.content) is (fail_after is not None)


def test_responses_are_as_described(whole: Harness, schema: BaseSchema, document: dict[str, Any]) -> None:
    asked: dict[str, Any] = {"input": "a", "include": ["message.output_text.logprobs"], "top_logprobs": 1}
    conforms(document, "ResponseAnswer", post(whole.app, "/v1/responses", asked).json())
    conforms(document, "ErrorAnswer", post(whole.app, "/v1/responses", {}).json())
    kept = f"/v1/responses/{post(whole.app, '/v1/responses', asked).json()['id']}"
    conforms(document, "ResponseAnswer", request(whole.app, "GET", kept).json())
    conforms(document, "ResponseInputItems", request(whole.app, "GET", f"{kept}/input_items").json())
    conforms(document, "ResponseDeleted", request(whole.app, "DELETE", kept).json())
    operation = schema["/v1/responses"]["POST"]
    for fail_after in fails_then(whole):
        reply = operation.Case(body={**asked, "stream": True}).call_and_validate(checks=CONFORMANCE)
        shown = named_events(reply.text)
        for one in shown:
            conforms(document, EVENT_OF.get(one["type"], "ResponseStateEvent"), one)
        assert shown[-1]["type"] == ("response.failed" if fail_after else "response.completed")


def test_tokens_are_as_described(whole: Harness, document: dict[str, Any]) -> None:
    asked: dict[str, Any] = {"messages": [{"role": "user", "content": "a"}], "logprobs": True, "top_logprobs": 1}
    rendered = post(whole.app, "/v1/chat/completions/render", asked).json()
    conforms(document, "RenderedRequest", rendered)
    conforms(document, "RenderedPrompts", post(whole.app, "/v1/completions/render", {"prompt": ["a", "b"]}).json())
    conforms(document, "GenerateTokensRequest", rendered)
    rendered["sampling_params"]["prompt_logprobs"] = 1
    conforms(document, "GeneratedTokens", post(whole.app, "/inference/v1/generate", rendered).json())
    streamed = {"token_ids": [5], "sampling_params": {"logprobs": 1}, "stream": True}
    streamed["stream_options"] = {"include_usage": True}
    *chunks, _ = events(post(whole.app, "/inference/v1/generate", streamed).text)
    for chunk in chunks:
        conforms(document, "GeneratedTokensChunk", chunk)


def test_time_lines_are_as_described(whole: Harness, document: dict[str, Any]) -> None:
    conforms(document, "PastRequestTimeline", request(whole.app, "GET", "/v1/requests/mine/timeline").json())
    listed = request(whole.app, "GET", "/v1/requests?which=slowest").json()
    assert len(listed["data"]) == 1
    conforms(document, "PastRequests", listed)


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (OverloadedError("full", retry_after_s=1.0), "429"),
        (UnavailableError("nobody"), "503"),
        (EngineError("x"), "500"),
    ],
)
def test_errors_of_the_backend(whole: Harness, document: dict[str, Any], error: Exception, status: str) -> None:
    whole.script_of = lambda _: Script((), fail_after=0, error=error)
    for path, ask in (("/v1/chat/completions", chat), ("/v1/completions", complete)):
        reply = ask(whole.app)
        described = document["paths"][path]["post"]["responses"]
        assert str(reply.status_code) == status
        assert described[status]["content"]["application/json"]["schema"] == {
            "$ref": "#/components/schemas/ErrorAnswer"
        }
        conforms(document, "ErrorAnswer", reply.json())
        assert {name.lower() for name in described[status]["headers"]} <= {*reply.headers, "x-cloudmatrix-warning"}


def test_keys_are_described_where_they_are_asked_for(served: ServedModel, document: dict[str, Any]) -> None:
    closed = with_timelines(Harness(served, ApiSettings(api_key_hashes=(hash_api_key("one"),)), two_servers()))
    described = request(closed.app, "GET", "/openapi.json", headers={"authorization": "Bearer one"}).json()
    (scheme,) = described["components"]["securitySchemes"]
    for method, path in ROUTES:
        operation = described["paths"][path][method.lower()]
        needed = request(closed.app, method, re.sub("{.*?}", "x", path)).status_code == 401
        assert operation.get("security") == ([{scheme: []}] if needed else None)
        assert ("401" in operation["responses"]) == needed
    assert "401" not in document["paths"]["/v1/models"]["get"]["responses"], "an open server asks for none"
