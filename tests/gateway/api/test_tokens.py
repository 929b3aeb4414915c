"""Tokens in, tokens out; and a renderer whose requests compute what the rendered ones would."""

from typing import Any

import httpx
import pytest

from serving.errors import EngineError, OverloadedError
from serving.gateway.api.settings import ApiSettings, ServedModel, hash_api_key
from tests.gateway.api.support import EOS, Harness, check, events, post, request

PATH = "/inference/v1/generate"
CHAT = {"messages": [{"role": "user", "content": "hi"}]}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}


def ask(harness: Harness, **fields: Any) -> httpx.Response:
    params = fields.pop("sampling_params", {})
    return post(harness.app, PATH, {"token_ids": [68, 70], "sampling_params": params, **fields})


def test_tokens_are_answered_with_tokens(harness: Harness) -> None:
    said = list(harness.say("Once upon").tokens)
    reply = ask(harness, request_id="mine", sampling_params={"n": 2, "logprobs": 1, "prompt_logprobs": 1, "seed": 3})
    assert reply.status_code == 200, reply.text
    body = reply.json()
    assert body["request_id"] == reply.headers["x-request-id"] == "mine"
    harness.script_of = lambda _: harness.say("Once upon")
    body = ask(harness, sampling_params={"n": 2, "logprobs": 1, "prompt_logprobs": 1, "seed": 3}).json()
    assert [choice["token_ids"] for choice in body["choices"]] == [said, said]
    assert {choice["finish_reason"] for choice in body["choices"]} == {"stop"}
    told = body["choices"][0]["logprobs"]["content"]
    assert [one["token"] for one in told] == [f"token_id:{token}" for token in said]
    assert len(body["prompt_logprobs"]) == 2
    assert body["usage"]["completion_tokens"] == 2 * len(said)
    job = harness.backend.jobs[-1]
    assert [one.sampling.seed for one in job.sequences] == [3, 4]
    assert job.sequences[0].prompt == (68, 70)
    assert job.sequences[0].sampling.max_tokens == 16


def test_a_stream_of_tokens(harness: Harness) -> None:
    said = list(harness.say("Once upon a time").tokens)
    *chunks, last, end = events(ask(harness, stream=True, stream_options={"include_usage": True}).text)
    assert [token for chunk in chunks for token in chunk["choices"][0]["token_ids"]] == said
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None] * (len(chunks) - 1) + ["stop"]
    assert (last["choices"], last["usage"]["completion_tokens"], end) == ([], len(said), "[DONE]")
    assert events(ask(harness, stream=True).text)[-1] == "[DONE]"
    harness.script_of = lambda _: harness.say("Once upon", fail_after=1, error=EngineError("x"))
    *_, failed, end = events(ask(harness, stream=True).text)
    assert (failed["error"]["code"], end) == ("internal_error", "[DONE]")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"token_ids": []}, "token_ids"),
        ({"token_ids": "hi"}, "token_ids"),
        ({"token_ids": [400]}, "token_ids"),
        ({"token_ids": [5] * 600}, "token_ids"),
        ({"sampling_params": None}, "sampling_params"),
        ({"sampling_params": {"temperature": 3}}, "sampling_params.temperature"),
        ({"sampling_params": {"max_tokens": 0}}, "sampling_params.max_tokens"),
        ({"sampling_params": {"max_tokens": 5, "min_tokens": 6}}, "sampling_params.min_tokens"),
        ({"sampling_params": {"logprobs": 21}}, "sampling_params.logprobs"),
        ({"sampling_params": {"stop_token_ids": [400]}}, "sampling_params.stop_token_ids"),
        ({"sampling_params": {"structured_outputs": {"regex": "("}}}, "sampling_params.structured_outputs.regex"),
        ({"sampling_params": {"bad_words": [""]}}, "sampling_params.bad_words"),
        ({"sampling_params": {"allowed_token_ids": [400]}}, "sampling_params.allowed_token_ids"),
        ({"sampling_params": {"prompt_logprobs": 1}, "stream": True}, "sampling_params.prompt_logprobs"),
        ({"temperature": 1}, "temperature"),
        ({"features": {"mm_hashes": {}}}, "features"),
        ({"kv_transfer_params": {"a": 1}}, "kv_transfer_params"),
        ({"request_id": "a\nb"}, "request_id"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
    ],
)  # fmt: skip
def test_what_cannot_be_served_is_refused_by_name(harness: Harness, fields: dict[str, Any], param: str) -> None:
    check(post(harness.app, PATH, {"token_ids": [5], "sampling_params": {}, **fields}), 400, param)
    assert not harness.backend.jobs


RENDERED: list[dict[str, Any]] = [
    {},
    {"temperature": 0.5, "top_p": 0.9, "top_k": 7, "min_p": 0.1, "seed": 2**63, "n": 3, "stop": ["x", "y"]},
    {"repetition_penalty": 1.1, "presence_penalty": 0.5, "frequency_penalty": -0.5, "logit_bias": {"5": 1.5}},
    {"ignore_eos": True, "min_tokens": 2, "stop_token_ids": [7], "include_stop_str_in_output": True},
    {"stop_token_ids": [7, EOS], "prompt_logprobs": 2, "cache_salt": "a", "priority": 3},
    {"response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}}, "skip_special_tokens": False},
    {"structured_outputs": {"json": SCHEMA, "disable_any_whitespace": False}},
    {"structured_outputs": {"choice": ["a", "b"]}},
    {"allowed_token_ids": [5, 6, 7], "bad_words": ["cat"]},
    {"structured_outputs": {"regex": "a+"}},
]


@pytest.mark.parametrize("fields", RENDERED)
@pytest.mark.parametrize(
    ("path", "own"),
    [
        ("/v1/chat/completions", {**CHAT, "max_tokens": 9, "logprobs": True, "top_logprobs": 2}),
        ("/v1/completions", {"prompt": "a dog", "logprobs": 2}),
        ("/v1/chat/completions", CHAT),
    ],
)
def test_what_is_rendered_computes_the_same(
    harness: Harness, path: str, own: dict[str, Any], fields: dict[str, Any]
) -> None:
    asked = {"seed": 5, **own, **fields}
    rendered = post(harness.app, f"{path}/render", asked)
    assert rendered.status_code == 200, rendered.text
    assert not harness.backend.jobs, "nothing is generated"
    body = rendered.json()[0] if path == "/v1/completions" else rendered.json()
    assert "x-cloudmatrix-warning" not in (reply := post(harness.app, PATH, body)).headers
    assert reply.status_code == 200, reply.text
    assert post(harness.app, path, asked).status_code == 200
    ours, theirs = (job.sequences for job in harness.backend.jobs)
    assert [(one.prompt, one.sampling, one.priority, one.salt) for one in ours] == [
        (one.prompt, one.sampling, one.priority, one.salt) for one in theirs
    ]


def test_each_prompt_is_rendered_by_itself(harness: Harness) -> None:
    first, second = post(harness.app, "/v1/completions/render", {"prompt": [[5], [6, 7]]}).json()
    assert (first["token_ids"], second["token_ids"]) == ([5], [6, 7])
    assert first["request_id"] != second["request_id"]
    check(post(harness.app, "/v1/completions/render", {"prompt": []}), 400, "prompt")
    check(post(harness.app, "/v1/chat/completions/render", {"messages": []}), 400, "messages")


def test_a_tokenizers_configuration_is_told(harness: Harness, served: ServedModel) -> None:
    told = request(harness.app, "GET", "/tokenizer_info").json()
    assert told["tokenizer_class"] == "PreTrainedTokenizerFast"
    assert told["bos_token"] == "<|bos|>"
    assert served.chat_template is not None
    assert told["chat_template"] == served.chat_template.source


def test_keys_and_a_full_system(served: ServedModel) -> None:
    closed = Harness(served, ApiSettings(api_key_hashes=(hash_api_key("one"),)))
    for path in (PATH, "/v1/chat/completions/render", "/v1/completions/render"):
        check(post(closed.app, path, {}), 401)
    check(request(closed.app, "GET", "/tokenizer_info"), 401)
    closed.backend.refuse = OverloadedError("full", retry_after_s=1)
    body = {"token_ids": [5], "sampling_params": {}}
    check(post(closed.app, PATH, body, headers={"x-api-key": "one"}), 429, code="rate_limit_exceeded")
