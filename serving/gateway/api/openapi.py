"""`/openapi.json`: every route with its body, its responses and its errors.

Routes declare their own responses with `answers`; this module adds those of the layers around them (keys, bugs, ids).
"""

from collections.abc import Sequence
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel

from serving.gateway.api.answers import ChatCompletionChunk, CompletionChunk, ErrorAnswer
from serving.gateway.api.auth import OPEN_PATHS
from serving.gateway.api.error_dialects import is_messages
from serving.gateway.api.field_notes import FIELD_NOTES
from serving.gateway.api.messages_answers import MESSAGE_EVENTS, MessagesErrorAnswer
from serving.gateway.api.openapi_bodies import BODIES
from serving.gateway.api.responses_answers import RESPONSE_EVENTS
from serving.gateway.api.tokens_answers import GeneratedTokensChunk
from serving.gateway.api.unknown_fields import WARNING_HEADER

BODY_ERRORS = (400, 408, 413, 415)
"""Statuses of a route that reads a body: refused, too slow, too large, not declared as JSON."""

_MEANING = {
    400: "The request is wrong; `param` names the field",
    401: "No API key, or an unknown one",
    403: "Not with this API key, or not under this name of the server",
    404: "There is no such thing here",
    408: "The time of the request is over",
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
