"""Unmodified requests of other servers' clients: fields without effect are accepted, and named if ignored."""

from typing import Any

import pytest

from serving.gateway.api.unknown_fields import WARNING_HEADER
from tests.gateway.api.support import Harness, chat, check, complete, post, request

ORDER = ["penalties", "dry", "top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature"]
LLAMA_UI = {
    "stream": True, "return_progress": True, "reasoning_format": "auto", "temperature": 0.8, "dynatemp_range": 0,
    "dynatemp_exponent": 1, "top_k": 40, "top_p": 0.95, "min_p": 0.05, "xtc_probability": 0, "xtc_threshold": 0.1,
    "typ_p": 1, "repeat_last_n": 64, "repeat_penalty": 1, "presence_penalty": 0, "frequency_penalty": 0,
    "dry_multiplier": 0, "dry_base": 1.75, "dry_allowed_length": 2, "dry_penalty_last_n": -1, "samplers": ORDER,
    "backend_sampling": False, "timings_per_token": True, "max_tokens": 100,
}  # fmt: skip
LLAMA_PROPS = {
    **LLAMA_UI, "seed": 2**32 - 1, "top_n_sigma": -1.0, "dry_sequence_breakers": ["\n", ":", '"', "*"], "mirostat": 0,
    "mirostat_tau": 5.0, "mirostat_eta": 0.1, "adaptive_target": -1.0, "adaptive_decay": 0.9, "stop": [], "n_keep": 0,
    "n_discard": 0, "ignore_eos": False, "n_probs": 0, "min_keep": 0, "grammar": "", "grammar_lazy": False,
    "grammar_triggers": [], "preserved_tokens": [], "chat_format": "Content-only", "reasoning_format": "none",
    "reasoning_in_content": False, "thinking_forced_open": False, "generation_prompt": "", "lora": [],
    "speculative.n_max": 16, "speculative.types": "none", "post_sampling_probs": False, "t_max_predict_ms": -1,
}  # fmt: skip
OPENAI = {
    "n": 1, "logprobs": False, "top_logprobs": 0, "store": False, "service_tier": "auto", "parallel_tool_calls": True,
    "verbosity": "medium", "reasoning_effort": "medium", "prompt_cache_key": "x", "safety_identifier": "u",
    "modalities": ["text"], "response_format": {"type": "text"}, "tool_choice": "none", "metadata": {"a": "b"},
    "user": "u", "stop": None, "seed": None, "logit_bias": {}, "functions": None, "audio": None,
    "prediction": {"type": "content", "content": "as before"},
}  # fmt: skip
OPEN_WEBUI = {
    "stream": True, "stream_options": {"include_usage": True}, "metadata": {"chat_id": "2"}, "chat_id": "1", "id": "m",
    "session_id": "s", "features": {"web_search": False}, "files": [], "tool_ids": [], "model_item": {}, "params": {},
    "background_tasks": {"title_generation": True},
}  # fmt: skip
TEXT_GENERATION = {
    "dynamic_temperature": False, "dynatemp_low": 1, "dynatemp_high": 1, "smoothing_factor": 0, "smoothing_curve": 1,
    "repetition_penalty": 1, "repetition_penalty_range": 1024, "typical_p": 1, "tfs": 1, "top_a": 0,
    "guidance_scale": 1, "negative_prompt": "", "mirostat_mode": 0, "do_sample": True, "seed": -1,
    "dry_sequence_breakers": '"\\n", ":"', "truncation_length": 0, "custom_token_bans": "", "ban_eos_token": False,
    "auto_max_new_tokens": False, "add_bos_token": True, "grammar_string": "", "max_new_tokens": 20, "max_tokens": 20,
    "stopping_strings": ["\nU:"], "stop": ["\nU:"], "sampler_order": [6, 0, 1, 3, 4, 2, 5], "rep_pen_range": 0,
    "random_seed": -1, "min_temp": 1.0, "max_temp": 1.0, "cfg_scale": 1.0, "penalty_range": -1, "allowed_tokens": [],
}  # fmt: skip
SGLANG = {
    "return_hidden_states": False, "return_routed_experts": False, "routed_experts_start_len": 0, "top_k": -1,
    "return_cached_tokens_details": True, "no_stop_trim": False, "separate_reasoning": True, "stream_reasoning": True,
}  # fmt: skip
VLLM = {
    "use_beam_search": False, "length_penalty": 1.0, "stop_token_ids": [], "bad_words": [], "min_tokens": 0,
    "include_reasoning": True, "watermarking": False, "routed_experts_prompt_start": 0,
    "spaces_between_special_tokens": True, "add_generation_prompt": True, "continue_final_message": False,
    "stream_interval": 1, "return_mm_kwargs": True,
}  # fmt: skip
TGI = {"tool_choice": "auto", "tool_prompt": "Given the functions available, ", "guideline": "", "stop": ""}


@pytest.mark.parametrize(
    "fields",
    [LLAMA_UI, LLAMA_PROPS, OPENAI, OPEN_WEBUI, TEXT_GENERATION, SGLANG, VLLM, TGI],
    ids=["llama.cpp UI", "llama.cpp props", "OpenAI", "Open WebUI", "text generation", "SGLang", "vLLM", "TGI"],
)
def test_defaults_of_clients_pass(harness: Harness, fields: dict[str, Any]) -> None:
    reply = chat(harness.app, **fields)
    assert reply.status_code == 200, reply.text


def test_what_is_ignored_is_named(harness: Harness) -> None:
    reply = chat(harness.app, timings_per_token=True, return_progress=True, prediction={"content": "x"}, model_id="x")
    named = "ignored fields: timings_per_token, return_progress, prediction, model_id"
    assert reply.headers[WARNING_HEADER] == named
    assert WARNING_HEADER not in chat(harness.app, repeat_last_n=64, samplers=ORDER, verbosity="medium").headers


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": 0, "do_sample": False},
        {"max_tokens": 7, "n_predict": 7},
        {"functions": [{"name": "f"}], "function_call": "none"},
        {"samplers": "edskypmxt"},
        {"samplers": ["dry", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature"]},
        {"sampler_priority": ["dry", "temperature", "top_k", "top_p", "typical_p", "min_p"]},
        {"add_generation_prompt": False, "chat_template_kwargs": {"add_generation_prompt": False}},
        {"chat_template_kwargs": {"enable_thinking": False, "tools": None, "documents": []}},
    ],
)
def test_values_that_change_nothing_beside_the_others(harness: Harness, fields: dict[str, Any]) -> None:
    assert chat(harness.app, **fields).status_code == 200


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"temperature": 0.5, "do_sample": False}, "do_sample"),
        ({"max_tokens": 7, "n_predict": 8}, "n_predict"),
        ({"max_tokens": 1, "n_predict": True}, "n_predict"),
        ({"repeat_last_n": 64, "repetition_penalty": 1.1}, "repeat_last_n"),
        ({"repeat_last_n": 64, "presence_penalty": 0.1}, "repeat_last_n"),
        ({"samplers": ["temperature"]}, "samplers"),
        ({"samplers": ["top_k", "top_p", "temperature", "min_p"]}, "samplers"),
        ({"samplers": True}, "samplers"),
        ({"verbosity": "low"}, "verbosity"),
        ({"continue_": True}, "continue_"),
        ({"chat_template_kwargs": {"tools": [{}]}}, "chat_template_kwargs.tools"),
        ({"chat_template_kwargs": {"add_generation_prompt": False}}, "chat_template_kwargs.add_generation_prompt"),
        ({"chat_template_kwargs": {"chat_template": "x"}}, "chat_template_kwargs.chat_template"),
    ],
)
def test_values_that_change_the_answer(harness: Harness, fields: dict[str, Any], param: str) -> None:
    check(chat(harness.app, **fields), 400, param, "unsupported_parameter")
    assert not harness.backend.jobs


@pytest.mark.parametrize(
    ("name", "ours"),
    [("stopSequences", "stop"), ("repeat-penalty", "repetition_penalty"), ("maxNewTokens", "max_tokens"),
     ("GUIDED_DECODING", "leave it out"), ("systemInstruction", "role system")],
)  # fmt: skip
def test_other_spellings_of_foreign_fields(harness: Harness, name: str, ours: str) -> None:
    check(chat(harness.app, **{name: "x"}), 400, name, "unsupported_parameter", ours)
    assert chat(harness.app, **{name: ""}).status_code == 200
    assert WARNING_HEADER in chat(harness.app, cachePrompt=True).headers


@pytest.mark.parametrize("name", ["model_id", "stream_id", "tool_ids", "streamId", "user_names", "promptId"])
def test_a_name_of_something_else_is_no_misspelling(harness: Harness, name: str) -> None:
    for route in (chat, complete):
        assert route(harness.app, **{name: "x"}).headers[WARNING_HEADER] == f"ignored fields: {name}"
    content_id = [{"role": "user", "content": "x", "content_id": "1"}]
    assert chat(harness.app, messages=content_id).status_code == 200


def test_a_conversation_with_tools_and_thoughts_comes_back(harness: Harness) -> None:
    """Our own names of a message's keys are not reported as misspelt."""
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    messages = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": None, "tool_calls": [call], "reasoning_content": "so", "refusal": None},
        {"role": "tool", "tool_call_id": "1", "content": "5"},
        {"role": "assistant", "content": "x", "annotations": [], "reasoning_details": [], "function_call": None},
        {"role": "user", "content": "go on"},
    ]
    for reply in (chat(harness.app, messages=messages), post(harness.app, "/tokenize", {"messages": messages})):
        assert reply.status_code == 200, reply.text


def test_no_log_probabilities_may_be_said_as_in_chat(harness: Harness) -> None:
    reply = complete(harness.app, logprobs=False)
    assert reply.status_code == 200
    assert reply.json()["choices"][0]["logprobs"] is None


HEADERS = {"content-type": "application/json"}


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity"])
def test_numbers_that_are_no_json(harness: Harness, number: str) -> None:
    message = '"messages": [{"role": "user", "content": "NaN or Infinity?"}]'
    bodies = (
        '"metadata": {"a": %s}',
        '"unknown": [%s]',
        '"chat_template_kwargs": {"a": %s}',
        '"logit_bias": {"1": %s}',
    )
    for body in bodies:
        for fields, status in ((f"{message}, {body % number}", 400), (f"{message}, {body % 1}", 200)):
            reply = request(harness.app, "POST", "/v1/chat/completions", content=f"{{{fields}}}", headers=HEADERS)
            assert reply.status_code == status, reply.text
            if status == 400 and "logit_bias" not in body:
                check(reply, 400, None, "invalid_json")


@pytest.mark.parametrize("mark", [r"\udfff", r"\udffe", r"\ud800", r"\udfff\ud83d"])
def test_no_text_holds_half_a_surrogate(harness: Harness, mark: str) -> None:
    """The marks of `control_tokens` are such surrogates, so only the server can produce them."""
    whole = '"messages": [{"role": "user", "content": "x"}]'
    for body in (
        '"messages": [{"role": "user", "content": "%s"}]',
        '"messages": [{"role": "user", "content": [{"type": "text", "text": "%s"}]}]',
        '"messages": [{"role": "%s", "content": "x"}]',
        '"messages": [{"role": "user", "content": "x", "%s": 1}]',
        '"messages": [{"role": "user", "content": "x", "name": "%s"}]',
        whole + ', "chat_template_kwargs": {"a": "%s"}',
        whole + ', "chat_template_kwargs": {"%s": 1}',
    ):
        for path in ("/v1/chat/completions", "/tokenize"):
            reply = request(harness.app, "POST", path, content=f"{{{body % mark}}}", headers=HEADERS)
            check(reply, 400, None, "invalid_json")
