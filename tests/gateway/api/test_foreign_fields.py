"""Fields that this server does not support: refused if they would change the response, else ignored with a warning."""

import logging
from typing import Any

import pytest

from serving.errors import InvalidRequestError
from serving.gateway.api.foreign_fields import HARMLESS, REFUSED
from serving.gateway.api.http.access import MOST_LOGGED
from serving.gateway.api.prompts import plain_message
from serving.gateway.api.schema import ChatCompletionRequest, ChatMessage, CompletionRequest
from serving.gateway.api.unknown_fields import MOST_NAMED, WARNING_HEADER, ignored_fields
from tests.gateway.api.support import Harness, chat, check, complete, post

SETS_SOMETHING = {"x": 1}


@pytest.mark.parametrize("request_", [ChatCompletionRequest, CompletionRequest])
def test_fields_that_change_the_answer_elsewhere_are_refused(
    request_: type[ChatCompletionRequest | CompletionRequest],
) -> None:
    for name in REFUSED.keys() - request_.model_fields:
        beside = {"repetition_penalty": 1.1} if "repetition_penalty" in REFUSED[name].idle else {}
        own = dict.fromkeys(request_.model_fields) | beside
        with pytest.raises(InvalidRequestError, match="not supported") as refused:
            ignored_fields({name: SETS_SOMETHING}, own, request_.FOREIGN)
        assert (refused.value.param, refused.value.code) == (name, "unsupported_parameter")


def test_null_sets_nothing(harness: Harness) -> None:
    for route, request_ in ((chat, ChatCompletionRequest), (complete, CompletionRequest)):
        reply = route(harness.app, **dict.fromkeys(sorted(REFUSED.keys() - request_.model_fields)))
        assert (reply.status_code, WARNING_HEADER in reply.headers) == (200, False)


@pytest.mark.parametrize(
    ("fields", "ours"),
    [
        ({"max_new_tokens": 5}, "'max_tokens'"),
        ({"n_predict": 5}, "'max_tokens'"),
        ({"repeat_penalty": 1.1}, "'repetition_penalty'"),
        ({"stop_sequences": ["x"]}, "'stop'"),
        ({"min_new_tokens": 5}, "'min_tokens'"),
        ({"enable_thinking": False}, "'chat_template_kwargs'"),
        ({"extra_body": {"top_k": 1}}, "at the top level"),
        ({"regex": "a+"}, "leave it out"),
        ({"return_routed_experts": True}, "leave it out"),
    ],
)
def test_the_error_names_the_field_of_this_server(harness: Harness, fields: dict[str, Any], ours: str) -> None:
    check(chat(harness.app, **fields), 400, next(iter(fields)), "unsupported_parameter", ours)
    assert not harness.backend.jobs


def test_a_field_of_the_other_route_is_foreign(harness: Harness) -> None:
    check(complete(harness.app, max_completion_tokens=5), 400, "max_completion_tokens", text="'max_tokens'")
    check(complete(harness.app, top_logprobs=2), 400, "top_logprobs", text="'logprobs'")
    check(complete(harness.app, tools=[{"type": "function"}]), 400, "tools")
    of_chat = {"reasoning_effort": "low", "chat_template_kwargs": {"a": 1}, "continue_final_message": True}
    for name, value in of_chat.items():
        check(complete(harness.app, **{name: value}), 400, name, text="use /v1/chat/completions")
    assert complete(harness.app, continue_final_message=False, add_generation_prompt=True).status_code == 200
    check(chat(harness.app, prompt="x"), 400, "prompt", text="'messages'")
    check(post(harness.app, "/tokenize", {"content": "x"}), 400, "content", text="prompt")


def test_neutral_values_pass_without_a_warning(harness: Harness) -> None:
    reply = chat(
        harness.app, repeat_penalty=1.0, typical_p=1, no_repeat_ngram_size=0, regex="", grammar=None, mirostat=0,
        lora_path=[], stop_regex={}, echo=False, xtc_probability=0.0, return_hidden_states=False, do_sample=True,
    )  # fmt: skip
    assert reply.status_code == 200, reply.text
    assert WARNING_HEADER not in reply.headers
    # One and true are different values.
    check(chat(harness.app, return_hidden_states=0), 400, "return_hidden_states")


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("max_token", "max_tokens"), ("maxTokens", "max_tokens"), ("max-tokens", "max_tokens"),
        ("temprature", "temperature"), ("top-p", "top_p"), ("topK", "top_k"), ("stops", "stop"), ("steam", "stream"),
        ("presence_penality", "presence_penalty"), ("stop_token_id", "stop_token_ids"), ("N", "n"),
    ],
)  # fmt: skip
def test_a_misspelt_field_gets_a_suggestion(harness: Harness, name: str, meant: str) -> None:
    check(chat(harness.app, **{name: 1}), 400, name, "unknown_parameter", f"did you mean '{meant}'?")
    assert chat(harness.app, **{name: None}).status_code == 200


def test_misspelt_fields_of_inner_objects(harness: Harness) -> None:
    reply = chat(harness.app, stream=True, stream_options={"include_usages": True})
    check(reply, 400, "stream_options.include_usages", "unknown_parameter", "'stream_options.include_usage'")
    reply = chat(harness.app, messages=[{"role": "assistant", "contents": "x", "tool_calls": [{}]}])
    check(reply, 400, "messages[0].contents", "unknown_parameter", "'messages[0].content'")
    reply = chat(harness.app, messages=[{"role": "user", "content": [{"type": "text", "text": "a", "texts": 1}]}])
    check(reply, 400, "messages[0].content[0].texts", "unknown_parameter")
    reply = chat(harness.app, response_format={"type": "text", "schema": {"type": "object"}})
    check(reply, 400, "response_format.schema", "unsupported_parameter")
    reply = chat(harness.app, messages=[{"role": "user", "content": "a", "prefix": True}])
    check(reply, 400, "messages[0].prefix", "unsupported_parameter", "continue_final_message")
    check(post(harness.app, "/pool/audit", {"repairs": True}), 404)  # without a pool no field is read


def test_other_unknown_fields_are_named_in_a_header_and_logged_once(
    fresh: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "serving.gateway.api")
    parts = [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}] * 2
    for stream in (False, True):
        reply = chat(fresh.app, stream=stream, my_trace=5, store=True, messages=[{"role": "user", "content": parts}])
        assert reply.status_code == 200
        assert reply.headers[WARNING_HEADER] == (
            "ignored fields: my_trace, store, messages[0].content[0].cache_control, "
            "messages[0].content[1].cache_control"
        )
    logged = [record.getMessage() for record in caplog.records if "is ignored" in record.getMessage()]
    assert len(logged) == 3
    assert sum("messages[].content[].cache_control" in line for line in logged) == 1


def test_names_of_clients_can_forge_neither_headers_nor_an_endless_log(
    fresh: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "serving.gateway.api")
    reply = chat(fresh.app, **{"a\r\nset-cookie: b": 1, "é漢": 2, "z" * 5000: 3})
    assert reply.headers[WARNING_HEADER] == f"ignored fields: a??set-cookie: b, \\xe9\\u6f22, {'z' * 40}"
    many = {f"q{i}q": i for i in range(MOST_LOGGED + 50)}
    reply = chat(fresh.app, **many)
    assert reply.headers[WARNING_HEADER].endswith(f"and {len(many) - MOST_NAMED} more")
    assert sum("is ignored" in record.getMessage() for record in caplog.records) == MOST_LOGGED


def test_harmless_fields_of_others_are_accepted(harness: Harness) -> None:
    assert not HARMLESS & set(REFUSED)
    others = HARMLESS - ChatCompletionRequest.model_fields.keys()
    reply = chat(harness.app, **dict.fromkeys(sorted(others), "x"))
    assert reply.status_code == 200, reply.text
    assert f"and {len(others) - MOST_NAMED} more" in reply.headers[WARNING_HEADER]


def test_request_id_of_the_body(harness: Harness) -> None:
    reply = chat(harness.app, request_id="mine-1")
    assert reply.headers.get_list("x-request-id") == ["mine-1"]
    assert reply.json()["id"] == "chatcmpl-mine-1"
    assert complete(harness.app, request_id="mine-1").json()["id"] == "cmpl-mine-1"
    chat(harness.app, request_id="mine-1")
    assert len({job.request_id for job in harness.backend.jobs}) == 3  # the system's own ids stay unique
    both = post(
        harness.app, "/v1/completions", {"prompt": "x", "request_id": "b"}, headers={"x-request-id": "of-header"}
    )
    assert both.headers.get_list("x-request-id") == ["of-header"]
    refused = chat(harness.app, request_id="mine-2", top_p=0.5, truncate_prompt_tokens=0)
    assert (refused.status_code, refused.headers["x-request-id"]) == (400, "mine-2")
    for bad in ("", "x" * 129, "a\nb", "é"):
        check(chat(harness.app, request_id=bad), 400, "request_id", "invalid_value")


def test_truncation_side(harness: Harness) -> None:
    for side, kept in (("left", (7, 8)), ("right", (5, 6)), (None, (7, 8))):
        reply = complete(harness.app, prompt=[5, 6, 7, 8], truncate_prompt_tokens=2, truncation_side=side)
        assert reply.status_code == 200
        assert harness.backend.jobs[-1].sequences[0].prompt == kept
    check(complete(harness.app, truncation_side="middle"), 400, "truncation_side")
    check(post(harness.app, "/tokenize", {"prompt": "a", "truncation_side": "right"}), 400, "truncation_side")


@pytest.mark.parametrize("role", ["user", "system", "developer", "tool", "assistant"])
def test_a_message_without_content_is_named(harness: Harness, role: str) -> None:
    first = {"role": "user", "content": "hi"}
    for message in ({"role": role}, {"role": role, "content": None}):
        reply = chat(harness.app, messages=[first, message])
        check(reply, 400, "messages[1].content", "missing_required_parameter", "messages[1].content")
        reply = post(harness.app, "/tokenize", {"messages": [first, message]})
        check(reply, 400, "messages[1].content", "missing_required_parameter")
    called = ChatMessage.model_validate({"role": "assistant", "tool_calls": [{"type": "function"}]})
    assert plain_message(called, 1)["tool_calls"]  # calls replace content, if the template can render them
    assert chat(harness.app, messages=[{"role": role, "content": ""}]).status_code == 200


def test_temperature_is_bounded_as_at_openai(harness: Harness) -> None:
    assert chat(harness.app, temperature=2).status_code == 200
    for route in (chat, complete):
        check(route(harness.app, temperature=2.01), 400, "temperature")
