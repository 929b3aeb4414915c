"""`/openapi.json`: every route with its body, its responses and its errors.

Routes declare their own responses with `answers`; this module adds those of the layers around them (keys, bugs, ids).
"""

from collections.abc import Sequence
from typing import Any, Literal

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel

from serving.gateway.api.answers import ChatCompletionChunk, CompletionChunk, ErrorAnswer
from serving.gateway.api.batches.schema import BatchRequest
from serving.gateway.api.hints.schema import CacheTouchRequest, KvHintsRequest
from serving.gateway.api.http.auth import OPEN_PATHS
from serving.gateway.api.http.errors import is_messages
from serving.gateway.api.messages.schema import MESSAGE_EVENTS, CountTokensRequest, MessagesErrorAnswer, MessagesRequest
from serving.gateway.api.responses.event_schema import RESPONSE_EVENTS
from serving.gateway.api.responses.schema import ResponsesRequest
from serving.gateway.api.schema import (
    AbortRequests,
    CacheQuery,
    ChatCompletionRequest,
    CompletionRequest,
    DetokenizeRequest,
    PoolAuditRequest,
    PoolNamespaceRequest,
    TokenizeRequest,
    WireModel,
)
from serving.gateway.api.tokens.schema import GeneratedTokensChunk, GenerateTokensRequest
from serving.gateway.api.unknown_fields import WARNING_HEADER

BODY_ERRORS = (400, 408, 413, 415)
"""Statuses of a route that reads a body: refused, too slow, too large, not declared as JSON."""

_MEANING = {
    400: "The request is wrong; `param` names the field",
    401: "No API key, or an unknown one",
    403: "Not with this API key, or not under this name of the server",
    404: "There is no such thing here",
    408: "The time of the request is over",
    409: "Not possible at present",
    413: "The body is too large",
    415: "The body is not declared as JSON",
    429: "Overload; retry after the time in Retry-After",
    431: "Headers that are too large",
    500: "The server's own fault",
    503: "No instance can serve this now; retry after the time in Retry-After",
    529: "Overload; retry after the time in Retry-After",
}
_RETRY_AFTER: dict[str, Any] = {
    "Retry-After": {"description": "seconds", "schema": {"type": "string", "pattern": "^[0-9]+$"}}
}
_HEADERS: dict[int, dict[str, Any]] = {
    401: {"WWW-Authenticate": {"schema": {"type": "string"}}},
    429: _RETRY_AFTER,
    503: _RETRY_AFTER,
    529: _RETRY_AFTER,
}
_REQUEST_ID = {"description": "the client's own, else a new one", "schema": {"type": "string"}}
_IGNORED = {"description": "fields of the body without effect on this server", "schema": {"type": "string"}}
_KEY = {"type": "http", "scheme": "bearer"}
_REF = "#/components/schemas/{model}"
BODY_PARTS = (
    "ChatMessage",
    "StreamOptions",
    "TokenSamplingParams",
    "ResponseTextConfig",
    "ResponseReasoningConfig",
    "MessageTurn",
    "ThinkingConfig",
    "OutputConfig",
    "KvHintsEnvelope",
    "HintActionBody",
    "PromptCacheOptions",
)
_EVENTS: tuple[type[BaseModel], ...] = (
    ChatCompletionChunk,
    CompletionChunk,
    GeneratedTokensChunk,
    *RESPONSE_EVENTS,
    *MESSAGE_EVENTS,
)

_EVERYWHERE = (400, 408, 431, 500, 503)
"""Statuses of every route: invalid HTTP, too slow, headers too large; bugs; a gateway that is full or shuts down."""

Responses = dict[int | str, dict[str, Any]]


def answers(
    model: type[BaseModel] | None,
    *errors: int,
    content: dict[str, Any] | None = None,
    error: type[BaseModel] = ErrorAnswer,
) -> Responses:
    """A route's `responses`.

    Args:
        model: of a success's JSON object.
        errors: the route's own statuses, besides 405 and those of all routes.
        content: further content of a success by media type.
        error: of an error's JSON object.
    """
    success: dict[str, Any] = {"description": "Success"}
    if model is not None:
        success["model"] = model
    if content is not None:
        success["content"] = content
    return {200: success, **{status: {"model": error, "description": _MEANING[status]} for status in errors}}


def text_content(media_type: str) -> dict[str, Any]:
    """Plain text."""
    return {media_type: {"schema": {"type": "string"}}}


def event_stream(chunk: type[BaseModel]) -> dict[str, Any]:
    """A stream of `chunk`, for `answers`. As usual for streams, the schema describes each event."""
    chunks = _event_data((chunk, ErrorAnswer))
    data = {
        "description": "A chunk as JSON, at last `[DONE]`; an error object before that in case of one.",
        "anyOf": [chunks, {"type": "string", "const": "[DONE]"}],
    }
    schema = {"type": "object", "description": "With `stream`.", "properties": {"data": data}, "required": ["data"]}
    return {"text/event-stream": {"schema": schema}}


def named_event_stream(*events: type[BaseModel]) -> dict[str, Any]:
    """A stream of named events, each name being its object's `type`, for `answers`."""
    fields = {"event": {"type": "string"}, "data": _event_data(events)}
    schema = {"type": "object", "description": "With `stream`.", "properties": fields, "required": ["event", "data"]}
    return {"text/event-stream": {"schema": schema}}


def _event_data(models: Sequence[type[BaseModel]]) -> dict[str, Any]:
    either = [{"$ref": _REF.format(model=one.__name__)} for one in models]
    return {"type": "string", "contentMediaType": "application/json", "contentSchema": {"anyOf": either}}


def describe(app: FastAPI, *, keys: bool, hosts: bool = False, root_path: str = "") -> dict[str, Any]:
    """Build the document, which is done once.

    Args:
        keys: whether requests need an API key.
        hosts: whether requests must name this server in `Host`.
        root_path: path prefix that a proxy adds.
    """
    if app.openapi_schema is None:
        schema = get_openapi(title=app.title, version=app.version, routes=app.routes)
        if root_path:
            schema["servers"] = [{"url": root_path}]
        parts = schema.setdefault("components", {})
        models = parts.setdefault("schemas", {})
        for unused in ("HTTPValidationError", "ValidationError"):  # FastAPI's own, which no route sends
            models.pop(unused, None)
        described: list[tuple[str, type[BaseModel]]] = [*BODIES.items(), ("ErrorAnswer", ErrorAnswer)]
        for name, model in [*described, *((chunk.__name__, chunk) for chunk in _EVENTS)]:
            own = model.model_json_schema(ref_template=_REF, mode="validation" if name in BODIES else "serialization")
            models.update(own.pop("$defs", {}))
            models[name] = own
        for name in (*BODIES, *BODY_PARTS):
            for field_name, field in models[name]["properties"].items():
                field["description"] = FIELD_NOTES[field_name]
        if keys:
            parts["securitySchemes"] = {"key": _KEY}
        for path, methods in schema["paths"].items():
            for operation in methods.values():
                needs_key = keys and path not in OPEN_PATHS
                common = [*_EVERYWHERE, *([401] if needs_key else []), *([403] if hosts else [])]
                error = MessagesErrorAnswer if is_messages(path) else ErrorAnswer
                _complete(operation, common, error, needs_key=needs_key)
        app.openapi_schema = schema
    return app.openapi_schema


def _complete(operation: dict[str, Any], errors: list[int], error: type[BaseModel], *, needs_key: bool) -> None:
    """Add the responses and headers of every route: request id, header limits, bugs, and keys if required."""
    responses = operation["responses"]
    responses.pop("422", None)
    for status in errors:
        schema = {"$ref": _REF.format(model=error.__name__)}
        content = {"application/json": {"schema": schema}}
        responses.setdefault(str(status), {"description": _MEANING[status], "content": content})
    if needs_key:
        operation["security"] = [{"key": []}]
    ids = ("X-Request-ID", *(("request-id",) if error is MessagesErrorAnswer else ()))
    common = {**dict.fromkeys(ids, _REQUEST_ID), **({WARNING_HEADER: _IGNORED} if "requestBody" in operation else {})}
    for status, response in responses.items():
        response["headers"] = {**common, **_HEADERS.get(int(status), {})}
    operation["responses"] = dict(sorted(responses.items()))


# Meaning of each request field, for `/openapi.json` and the page made of it. A name has one meaning everywhere.

FIELD_NOTES = {
    "model": "Served name; without it the model that is served.",
    "messages": "The conversation, oldest message first.",
    "prompt": "Text or token ids to go on with, or a list of either.",
    "max_tokens": "Longest answer in tokens.",
    "max_completion_tokens": "The same as `max_tokens`, and wins over it.",
    "min_tokens": "End tokens and stop strings count only after so many tokens.",
    "temperature": "0 = always the likeliest token. Default: the model's generation_config.json, else 1.",
    "top_p": "Draw from the likeliest tokens that have this share of probability together.",
    "top_k": "Draw from so many of the likeliest tokens; 0 or -1 = from all.",
    "min_p": "Draw from tokens that have at least this share of the likeliest one's probability.",
    "repetition_penalty": "Above 1: tokens of prompt and answer come again less often.",
    "presence_penalty": "Taken from the logit of each token that the answer has.",
    "frequency_penalty": "Taken from a token's logit as often as the answer has it.",
    "logit_bias": "Added to logits, by token id.",
    "seed": "The same seed gives the same answer.",
    "n": "Answers to each prompt.",
    "stop": "Text, or list of texts, that ends the answer.",
    "stop_token_ids": "Token ids that end the answer.",
    "include_stop_str_in_output": "Include the stop string in the output.",
    "ignore_eos": "Go on after the model's end token.",
    "skip_special_tokens": "Leave special tokens out of the text; true by default.",
    "spaces_between_special_tokens": "Accepted, without effect.",
    "stream": "Send the answer as server-sent events while it is computed.",
    "stream_options": "Additional content of a stream.",
    "include_usage": "End with a chunk that has the usage.",
    "continuous_usage_stats": "Every chunk has the usage so far.",
    "truncate_prompt_tokens": "Keep so many tokens of the prompt; -1 = as many as leave room for the answer.",
    "truncation_side": "Which end of a long prompt is cut off: `left` by default.",
    "prompt_logprobs": "Log-probabilities of the prompt's tokens, each with so many alternatives; -1 = all there are.",
    "return_token_ids": "Return token ids of prompt and response in addition to the text.",
    "return_tokens_as_token_ids": "Tokens of log-probabilities are named by their ids.",
    "return_replicas": "Name the replicas that computed it, next to the usage, if the caller's key may see the system.",
    "add_special_tokens": "Let the tokenizer add special tokens of its own, such as the first one.",
    "cache_salt": "Cached blocks of the prompt are shared among requests of the same salt only.",
    "priority": "Lower runs earlier among one key's requests, at the gateway and in instances; never before another's.",
    "context_management": "Edits of the conversation: clear_tool_uses_20250919, clear_thinking_20251015.",
    "request_ids": "Of running requests: the ids of their responses, or those that clients set.",
    "request_id": "Of a request: part of the answer's id, and its x-request-id.",
    "user": "Accepted, without effect.",
    "response_format": "What the whole answer must be: text, json_object, json_schema or structural_tag.",
    "structured_outputs": "One of json, regex, choice, grammar, json_object and structural_tag, with vLLM's options.",
    "allowed_token_ids": "Only these tokens may be drawn; an empty list is none.",
    "bad_words": "Words that the answer must not have, behind a blank or not; compared as tokens, as vLLM does.",
    "guided_json": "A JSON schema that the answer follows; as `structured_outputs.json`.",
    "guided_regex": "A regular expression that the whole answer matches.",
    "guided_choice": "Texts of which the answer is one.",
    "guided_grammar": "A grammar that the answer follows, in llguidance's Lark or in GBNF.",
    "guided_json_object": "The answer is a JSON object.",
    "guided_whitespace_pattern": 'Regular expression of the whitespace in JSON; by default it is `", "` and `": "`.',
    "add_generation_prompt": "Start the assistant's turn; true by default.",
    "continue_final_message": "Go on with the last message instead of beginning a turn.",
    "chat_template_kwargs": "Further variables of the chat template.",
    "logprobs": "Log-probabilities of the answer's tokens; in completions with so many alternatives each, -1 = all.",
    "top_logprobs": "Alternatives to each token, -1 = all there are; needs `logprobs`.",
    "reasoning_effort": "A variable of the chat template.",
    "tools": "Functions with their arguments' JSON schemas, and custom tools, that the model may call.",
    "tool_choice": "auto, none, required, a function or custom tool that must be called, or allowed_tools.",
    "functions": "Old name of `tools`: the functions themselves.",
    "function_call": "Old name of `tool_choice`: auto, none or a function's name.",
    "include_reasoning": "Send the model's reasoning; true by default.",
    "thinking_token_budget": "Most tokens of reasoning; its end is forced then.",
    "echo": "Start the text with the prompt; in chat with the last message, if it is the assistant's.",
    "best_of": "Must be equal to `n`.",
    "suffix": "Refused: not supported.",
    "tokens": "Token ids.",
    "return_token_strs": "Return the vocabulary's spelling of each token, too.",
    "repair": "Remove what is wrong; it will be computed again.",
    "quota_mib": "Most that the namespace may hold in MiB; 0 = no limit.",
    "weight": "Of each of the namespace's keys where requests wait for their turn.",
    "system": "Instructions, as a text or a list of text blocks.",
    "stop_sequences": "Texts that end the answer.",
    "metadata": "Without effect; responses and batches return it.",
    "input_file_id": "A file whose lines are the requests.",
    "endpoint": "Route of all requests of the file.",
    "completion_window": "Requests that could not run by then are in the error file.",
    "thinking": "Whether the model thinks first.",
    "output_config": "How the model answers.",
    "type": "`disabled`, `adaptive` or `enabled`.",
    "budget_tokens": "Most tokens of thinking, with `enabled`; its end is forced then.",
    "display": "Accepted, without effect.",
    "verbosity": "A variable of the chat template; named in the warning header if the template has none.",
    "effort": "The chat template's variable `reasoning_effort`.",
    "format": "Form of the text, such as a JSON schema.",
    "input": "A text, or items of a conversation: messages, calls of tools, their outputs, earlier reasoning.",
    "instructions": "A system message in front of the input; not kept for `previous_response_id`.",
    "previous_response_id": "Go on with the conversation of a response that is kept.",
    "background": "Answer at once, and generate the response without the client; needs `store`.",
    "store": "Store the response, so that it can be retrieved and continued; true by default.",
    "max_output_tokens": "Longest output in tokens; it ends where the model's context does, too.",
    "text": "Form of the text.",
    "reasoning": "How much the model thinks first.",
    "include": "More in the output: `message.output_text.logprobs`, `reasoning.encrypted_content`.",
    "truncation": "`auto` = leave out the beginning of an input that is too long; `disabled` = refuse it.",
    "parallel_tool_calls": "Whether several tools may be called at once.",
    "prompt_cache_key": "Names the session for KV hints; equal prefixes always share their cache.",
    "prompt_cache_retention": "Keep the prompt in the KV-cache pool: `in_memory` = 10 minutes, `24h` = at most that.",
    "prompt_cache_options": "Keep the prompt in the KV-cache pool for 30 minutes, or its parts with a breakpoint.",
    "mode": "`implicit` = also the whole prompt; `explicit` = up to each `prompt_cache_breakpoint` alone.",
    "ttl": "Time to live.",
    "kv_hints": "Actions on the cached prompts of sessions, in vLLM's envelope.",
    "return_kv_hints": "Return the outcomes of the actions as `kv_hints`.",
    "protocol_version": "Of the envelope: 0.1.",
    "message_id": "The client's own, repeated in the answer.",
    "actions": "At most 64.",
    "action_id": "The client's own; different for each action of an envelope.",
    "action_type": "kv.retain, kv.pin, kv.touch, kv.release, kv.demote, kv.prefetch, or a signal.",
    "action_version": "Of the payload: 1.0.",
    "payload": "Depends on the action, see the guide on KV hints.",
    "cache_control": "Keep the whole prompt for `ttl`: 5m, or 1h; or with `evict_on_complete` no longer.",
    "evict_on_complete": "End the claims of the session's branch when the response is complete.",
    "summary": "Accepted, without effect: reasoning is returned unchanged.",
    "token_ids": "The prompt's token ids.",
    "block_size": "Tokens of a KV block; must be this server's `[engine] block_tokens`.",
    "tenant_id": "The tenant whose cache is queried; default: that of the API key.",
    "instance_id": "Report this instance only.",
    "sampling_params": "How tokens are chosen, by the names of vLLM's sampling parameters.",
    "logprob_token_ids": "Report these tokens' log-probabilities at each position instead of the likeliest ones.",
    "role": "system, user, assistant, or another role of the chat template.",
    "content": "Text, or a list of parts with text.",
}
"""By name of the field, in whichever body it occurs."""


# Every request body that `/openapi.json` describes, by name.

OpenApiKind = Literal[
    "ChatCompletionRequest",
    "CompletionRequest",
    "ResponsesRequest",
    "MessagesRequest",
    "CountTokensRequest",
    "GenerateTokensRequest",
    "TokenizeRequest",
    "DetokenizeRequest",
    "CacheQuery",
    "PoolAuditRequest",
    "PoolNamespaceRequest",
    "AbortRequests",
    "BatchRequest",
    "KvHintsRequest",
    "CacheTouchRequest",
]
BODIES: dict[OpenApiKind, type[WireModel]] = {
    "ChatCompletionRequest": ChatCompletionRequest,
    "CompletionRequest": CompletionRequest,
    "ResponsesRequest": ResponsesRequest,
    "MessagesRequest": MessagesRequest,
    "CountTokensRequest": CountTokensRequest,
    "GenerateTokensRequest": GenerateTokensRequest,
    "TokenizeRequest": TokenizeRequest,
    "DetokenizeRequest": DetokenizeRequest,
    "CacheQuery": CacheQuery,
    "PoolAuditRequest": PoolAuditRequest,
    "PoolNamespaceRequest": PoolNamespaceRequest,
    "AbortRequests": AbortRequests,
    "BatchRequest": BatchRequest,
    "KvHintsRequest": KvHintsRequest,
    "CacheTouchRequest": CacheTouchRequest,
}
