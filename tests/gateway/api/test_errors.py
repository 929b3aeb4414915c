"""Every error that a client can cause or meet: status, object, headers."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken

from serving.errors import DeadlineError, EngineError, OverloadedError, PoisonError, UnavailableError
from serving.gateway.api.settings import ApiSettings, ServedModel
from serving.values.sequence import FinishReason
from tests.gateway.api.support import MAX_MODEL_LEN, Harness, chat, check, complete, events, post, request
from tests.nested import arrays

WRONG: Mapping[str, Sequence[object]] = {
    "messages": [None, [], "hi"],
    "temperature": ["hot", "0.5", -0.1],
    "top_p": [0, 1.1],
    "top_k": [-2],
    "min_p": [2],
    "max_tokens": [0, -1, 1.5, True, 10**30],
    "max_completion_tokens": [0, 100_000],
    "n": [0, 100_000],
    "seed": ["x", 2**64],
    "stop": [5, [""], ["x"] * 100, "x" * 5000],
    "stop_token_ids": [[100_000]],
    "logit_bias": [
        {"abc": 1}, {"999999": 1}, {"²": 1}, {"1": 101}, {"1": "x"}, {"1": True}, {str(i): 1 for i in range(2000)}, [],
    ],
    "presence_penalty": [3],
    "frequency_penalty": [-3],
    "repetition_penalty": [0, 1e-300],
    "logprobs": [1],
    "top_logprobs": [3],
    "stream_options": [{"include_usage": True}],
    "truncate_prompt_tokens": [0],
    "cache_salt": [""],
    "chat_template_kwargs": ["x"],
    "model": [5],
}  # fmt: skip
"""Values of single fields of a chat."""
WRONG_OF_COMPLETIONS: Mapping[str, Sequence[object]] = {
    "prompt": [None, [], [[]], ["a", 5], [1, "a"], [400], [-1], ["a"] * 300],
    "max_tokens": [0],
    "logprobs": [True, 21],
    "prompt_logprobs": [21],
    "suffix": ["x"],
    "best_of": [3],
    "prompt_embeds": ["x"],
    "response_format": ["json"],
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_values(harness: Harness, name: str) -> None:
    for value in WRONG[name]:
        check(chat(harness.app, **{name: value}), 400, name)
    assert harness.backend.jobs == []


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": [{"content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "picture"}]}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [5]}]}, "messages[0].content"),
        ({"max_tokens": 3, "min_tokens": 4}, "min_tokens"),
        ({"stop_token_ids": [-1]}, "stop_token_ids[0]"),
        ({"stop_token_ids": list(range(400)), "min_tokens": 1}, "min_tokens"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"stream": True, "prompt_logprobs": 1}, "prompt_logprobs"),
        ({"continue_final_message": True, "add_generation_prompt": True}, "continue_final_message"),
    ],
)
def test_impossible_parameters(harness: Harness, fields: dict[str, Any], param: str) -> None:
    check(chat(harness.app, **fields), 400, param)
    assert harness.backend.jobs == []


def test_completion_parameters(harness: Harness) -> None:
    for name, values in WRONG_OF_COMPLETIONS.items():
        for value in values:
            check(complete(harness.app, **{name: value}), 400, name)
    check(complete(harness.app, prompt="", add_special_tokens=False), 400, "prompt")
    assert harness.backend.jobs == []


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[1]", b"null", b'"x"', b"\xff\xfe", b"{" * 5000, b'{"messages": ["\\ud800"]}']
)
def test_bodies_that_are_no_json_object(harness: Harness, body: bytes) -> None:
    reply = request(
        harness.app, "POST", "/v1/chat/completions", content=body, headers={"content-type": "application/json"}
    )
    check(reply, 400)


@pytest.mark.parametrize("stream", [True, False])
def test_context_too_long(harness: Harness, stream: bool) -> None:
    words = "maximum context length"
    long = [9] * MAX_MODEL_LEN
    check(complete(harness.app, prompt=long, stream=stream), 400, "prompt", "context_length_exceeded", words)
    check(
        chat(harness.app, max_tokens=MAX_MODEL_LEN, stream=stream), 400, "max_tokens", "context_length_exceeded", words
    )


def test_hopeless_prompts_are_not_even_encoded(served: ServedModel) -> None:
    longest = max(len(own) for own in served.tokenizer.bytes_of or ())

    class Untouchable:
        normalizer = None

        def get_added_tokens_decoder(self) -> dict[int, AddedToken]:
            return {}

        def encode(self, text: str, add_special_tokens: bool) -> None:
            raise AssertionError("a hopeless prompt was encoded")

    tokenizer = replace(served.tokenizer, raw=Untouchable())  # type: ignore[arg-type]  # only what is used
    harness = Harness(replace(served, tokenizer=tokenizer))
    text = "x" * (longest * (MAX_MODEL_LEN + 1))
    check(complete(harness.app, prompt=text), 400, "prompt", "context_length_exceeded", "maximum context length")
    messages = [{"role": "user", "content": text}]
    check(chat(harness.app, messages=messages), 400, "messages", "context_length_exceeded", "maximum context length")
    assert complete(Harness(served).app, prompt=text, truncate_prompt_tokens=-1).status_code == 200


def test_texts_with_tokens_that_the_model_does_not_know(served: ServedModel) -> None:
    """A tokenizer with added tokens: in the engine, such a token would fail the step of the whole batch."""
    ids = served.tokenizer.encode("The dog", add_special_tokens=True)
    harness = Harness(replace(served, vocab_size=max(ids)))
    check(complete(harness.app, prompt="The dog"), 400, "prompt", "invalid_value", "outside the vocabulary of")
    messages = [{"role": "user", "content": "The dog"}]
    check(chat(harness.app, messages=messages), 400, "messages", "invalid_value", "outside the vocabulary of")
    assert not harness.backend.jobs


def test_unknown_model(harness: Harness) -> None:
    check(chat(harness.app, model="gpt-5"), 404, "model", "model_not_found")
    check(request(harness.app, "GET", "/v1/models/gpt-5"), 404, "model", "model_not_found")


def test_model_without_a_template(served: ServedModel) -> None:
    harness = Harness(ServedModel(("tiny",), "x", served.tokenizer, None, 99, (1,), 0))
    check(chat(harness.app), 400, "messages", text="no chat template")


def test_routes_methods_and_media_types(harness: Harness) -> None:
    check(request(harness.app, "GET", "/v1/nothing"), 404, code="not_found")
    check(request(harness.app, "POST", "/v1/embeddings"), 404, code="not_found", text="there are no embeddings here")
    check(request(harness.app, "GET", "/metrics/"), 404)
    ways = {
        "/v1/chat/completions": "POST", "/ping": "GET, POST", "/v1/models": "GET", "/openapi.json": "GET, HEAD",
        "/pool/namespaces/x": "POST, DELETE",
    }  # fmt: skip
    for path, allowed in ways.items():
        for method in ("PUT", "OPTIONS", "TRACE"):
            reply = request(harness.app, method, path)
            check(reply, 405, code="method_not_allowed")
            assert reply.headers.get_list("allow") == [allowed]
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"):
        reply = request(harness.app, "POST", "/v1/completions", content=b"{}", headers={"content-type": kind})
        check(reply, 415, code="unsupported_media_type")


def test_packed_bodies_are_told_so(harness: Harness) -> None:
    for packing in ("gzip", "br, gzip", "DEFLATE", "x"):
        headers = {"content-type": "application/json", "content-encoding": packing}
        for path in ("/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize"):
            reply = request(harness.app, "POST", path, content=b"\x1f\x8b", headers=headers)
            check(reply, 415, code="unsupported_content_encoding", text=packing.lower())
    reply = post(harness.app, "/v1/completions", {"prompt": "x"}, headers={"content-encoding": "identity"})
    assert reply.status_code == 200


def test_json_with_charset_or_another_name(harness: Harness) -> None:
    for kind in ("application/json; charset=utf-8", "application/vnd.x+json"):
        headers = {"content-type": kind}
        reply = request(harness.app, "POST", "/v1/completions", content=b'{"prompt": "x"}', headers=headers)
        assert reply.status_code == 200


def test_body_over_the_limit(served: ServedModel) -> None:
    harness = Harness(served, ApiSettings(max_body_bytes=500))
    reply = complete(harness.app, prompt="x" * 500)
    check(reply, 413, code="request_too_large")
    assert reply.headers["connection"] == "close"
    assert complete(harness.app, prompt="x" * 300).status_code == 200


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("error", "status", "retry_after", "reason"),
    [
        (OverloadedError("full", retry_after_s=2.3), 429, "3", "overloaded"),
        (UnavailableError("none", retry_after_s=0.0), 503, "1", "unavailable"),
    ],
)
def test_refused_by_admission(
    harness: Harness, stream: bool, error: Exception, status: int, retry_after: str, reason: str
) -> None:
    harness.backend.refuse, before = error, harness.metrics.rejections[reason]
    reply = chat(harness.app, stream=stream)
    check(reply, status)
    assert reply.headers["retry-after"] == retry_after
    assert harness.metrics.rejections[reason] == before + 1
    assert harness.metrics.in_flight == 0


FAILURES = [
    (DeadlineError("too late"), 408),
    (EngineError("secret detail"), 500),
    (PoisonError("secret replica"), 500),
    (UnavailableError("gone"), 503),
    (ValueError("secret bug"), 500),
]


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(("error", "status"), FAILURES)
def test_failure_before_the_first_token_is_plain_http(
    harness: Harness, stream: bool, error: Exception, status: int
) -> None:
    harness.script_of = lambda _: harness.say("Once upon", fail_after=0, error=error)
    before = harness.metrics.outcomes["error"]
    reply = chat(harness.app, stream=stream)
    check(reply, status)
    assert "secret" not in reply.text
    assert harness.backend.generations[0].cancelled
    assert harness.metrics.outcomes["error"] == before + 1


def test_poison_is_not_to_be_sent_again(harness: Harness) -> None:
    harness.script_of = lambda _: harness.say("Once upon", fail_after=0, error=PoisonError("secret replica"))
    reply = chat(harness.app, stream=False)
    assert reply.headers["x-should-retry"] == "false"
    check(reply, 500, None, "engine_lost_repeatedly", "must not be sent again")


@pytest.mark.parametrize(("error", "status"), FAILURES)
def test_failure_after_the_first_chunk_is_an_event(harness: Harness, error: Exception, status: int) -> None:
    harness.script_of = lambda _: harness.say("Once upon a time", fail_after=2, error=error)
    reply = chat(harness.app, stream=True)
    assert reply.status_code == 200
    *chunks, failure, done = events(reply.text)
    assert done == "[DONE]"
    assert len(chunks) == 3
    assert set(failure["error"]) == {"message", "type", "param", "code"}
    assert "secret" not in reply.text
    assert harness.metrics.in_flight == 0


@pytest.mark.parametrize(
    ("reason", "status"), [(FinishReason.DEADLINE, 408), (FinishReason.ERROR, 500), (FinishReason.ABORT, 500)]
)
def test_sequence_that_ends_undone_is_an_error(harness: Harness, reason: FinishReason, status: int) -> None:
    harness.script_of = lambda _: harness.say("Once", finish=reason, end=False)
    check(chat(harness.app), status)


@pytest.mark.real_time
@pytest.mark.parametrize("after", [0, 1])
@pytest.mark.parametrize("stream", [True, False])
def test_backend_that_misses_its_deadline_is_given_up(served: ServedModel, stream: bool, after: int) -> None:
    harness = Harness(served, ApiSettings(request_timeout_s=0.02, deadline_grace_s=0.02))
    harness.script_of = lambda _: harness.say("Once upon", hang_after=after)
    reply = chat(harness.app, stream=stream)
    if stream and after:
        *_, failure, done = events(reply.text)
        assert (failure["error"]["code"], done) == ("request_timeout", "[DONE]")
    else:
        check(reply, 408, code="request_timeout")
    assert harness.backend.generations[0].cancelled
    assert harness.metrics.outcomes["error"] == 1


def test_not_ready(harness: Harness) -> None:
    assert request(harness.app, "GET", "/ready").status_code == 200
    harness.backend.is_ready = False
    reply = request(harness.app, "GET", "/ready")
    check(reply, 503)
    assert reply.headers["retry-after"]
    assert request(harness.app, "GET", "/health").status_code == 200


def test_tokenize_errors(harness: Harness) -> None:
    check(post(harness.app, "/tokenize", {}), 400, "prompt")
    check(post(harness.app, "/tokenize", {"prompt": "x", "messages": []}), 400, "prompt")
    check(post(harness.app, "/tokenize", {"model": "no", "prompt": "x"}), 404, "model")
    check(post(harness.app, "/detokenize", {"tokens": "x"}), 400, "tokens")
    check(post(harness.app, "/detokenize", {"tokens": [999]}), 400, "tokens")
    check(post(harness.app, "/detokenize", {}), 400, "tokens")


def test_bug_in_a_route_is_an_error_object(fresh: Harness, tmp_path: Path) -> None:
    def broken() -> bool:
        raise ZeroDivisionError("secret")

    fresh.backend.ready = broken  # type: ignore[method-assign]
    reply = request(fresh.app, "GET", "/ready", headers={"x-request-id": "mine"})
    assert reply.status_code == 500
    assert reply.json()["error"]["code"] == "internal_error"
    assert "secret" not in reply.text
    assert reply.headers["x-request-id"] == "mine"
    assert {key: count for key, count in fresh.metrics.http.items() if count} == {("GET", "/ready", 500): 1}


@pytest.mark.parametrize("field", ["messages", "logit_bias", "stop", "response_format", "no_field_of_anybody"])
def test_a_body_nested_without_end_is_refused(harness: Harness, field: str) -> None:
    headers = {"content-type": "application/json"}
    for path in ("/v1/chat/completions", "/v1/completions", "/tokenize"):
        for levels in (190, 201, 5000, 200_000):
            body = f'{{"model": "tiny", "prompt": "a", "{field}": {arrays(levels)}}}'.encode()
            reply = request(harness.app, "POST", path, content=body, headers=headers)
            if levels > 200:  # the limit of pydantic's own parser, for every version of Python
                check(reply, 400, text="recursion limit exceeded")
            assert reply.status_code in (200, 400)
