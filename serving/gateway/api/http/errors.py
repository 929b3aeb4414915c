"""Typed errors to HTTP: status and object in the words of the API that was called."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from math import ceil

import msgspec
from pydantic import ValidationError
from starlette.types import Scope

from serving.errors import (
    AuthenticationError,
    DeadlineError,
    InvalidRequestError,
    OverloadedError,
    PermissionDeniedError,
    PoisonError,
    RequestError,
    UnavailableError,
)

# Typed errors to OpenAI error objects: `{"error": {"message", "type", "param", "code"}}` with the right status.


class UnsupportedMediaTypeError(RequestError):
    """The body is not declared as JSON."""

    status = 415
    code = "unsupported_media_type"


class RouteError(RequestError):
    """No such route, method not allowed, or not possible at present (409); `status` is set per instance."""

    def __init__(self, status: int, message: str, code: str | None = None) -> None:
        usual = {404: "not_found", 405: "method_not_allowed"}.get(status)
        super().__init__(message, code=code or usual)
        self.status = status


@dataclass(frozen=True, slots=True)
class ErrorReply:
    """An error as sent to the client."""

    status: int
    message: str
    kind: str
    param: str | None = None
    code: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    request_id: str = ""
    """Id of the exchange, for dialects that repeat it in the body."""

    def body(self) -> bytes:
        """The JSON object; also the payload of an error event in a stream."""
        error = {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}
        return msgspec.json.encode({"error": error})


_NOT_AGAIN = {"x-should-retry": "false"}
"""Prevents the automatic retries of a 408 and a 500 by OpenAI's clients."""


def reply_for(error: Exception) -> ErrorReply:
    """The reply to any exception. Internal errors (a bug, an engine failure) do not expose their details."""
    text = str(error)
    match error:
        case AuthenticationError():
            challenge = {"www-authenticate": "Bearer"}
            return ErrorReply(401, text, "authentication_error", error.param, error.code, challenge)
        case PermissionDeniedError():
            return ErrorReply(403, text, "permission_error", error.param, error.code)
        case RequestError():
            kind = error.kind or ("not_found_error" if error.status == 404 else "invalid_request_error")
            # The rest of a refused body is not read, so the connection cannot be reused.
            headers = {"connection": "close"} if error.status == 413 else {}
            return ErrorReply(error.status, text, kind, error.param, error.code, headers)
        case OverloadedError():
            return ErrorReply(429, text, "rate_limit_error", None, "rate_limit_exceeded", _retry(error.retry_after_s))
        case UnavailableError():
            return ErrorReply(503, text, "server_error", None, "service_unavailable", _retry(error.retry_after_s))
        case DeadlineError() | TimeoutError():
            # An immediate retry would wait as long again, in a system that did not serve it in time.
            text = text or "the request's time is over"
            return ErrorReply(408, text, "timeout_error", None, "request_timeout", _NOT_AGAIN)
        case PoisonError():
            text = "the engines that worked on this request were lost; it was given up and must not be sent again"
            return ErrorReply(500, text, "server_error", None, "engine_lost_repeatedly", _NOT_AGAIN)
        case _:
            return ErrorReply(500, "the request failed inside the server", "server_error", None, "internal_error")


def _retry(seconds: float) -> dict[str, str]:
    """Retry-After takes whole seconds; never 0, or clients would spin."""
    return {"retry-after": str(max(1, ceil(seconds)))}


def from_validation(error: ValidationError) -> InvalidRequestError:
    """The first problem that pydantic found, with the field named as in the request."""
    problems = error.errors(include_url=False, include_input=False)
    first = problems[0]
    if first["type"] == "json_invalid":
        return InvalidRequestError(f"the request body is not valid JSON: {first['msg']}", code="invalid_json")
    param = _param(first["loc"])
    if first["type"] == "value_error":  # raised by our own validators: the message is complete
        return InvalidRequestError(str(first["ctx"]["error"]), param=param, code="invalid_value")
    if param is None:
        return InvalidRequestError("the request body must be a JSON object", code="invalid_type")
    if first["type"] == "missing":
        return InvalidRequestError(f"missing required field '{param}'", param=param, code="missing_required_parameter")
    message = first["msg"] if len(problems) == 1 or len(first["loc"]) == 1 else "Input has a wrong type or value"
    return InvalidRequestError(f"invalid '{param}': {message}", param=param, code="invalid_value")


def _param(loc: tuple[int | str, ...]) -> str | None:
    """`('messages', 0, 'role')` to `messages[0].role`; the path ends before names of union members, not fields."""
    path = ""
    for part in loc:
        if isinstance(part, int):
            path += f"[{part}]"
        elif not part.isidentifier() or part in ("str", "int", "float", "bool", "dict", "list"):
            break
        else:
            path += f".{part}" if path else part
    return path or None


# Errors in the format of the requested path's API: Anthropic's below /v1/messages, OpenAI's otherwise.

_MESSAGES = "/v1/messages"
_KINDS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    529: "overloaded_error",
}
_OVERLOADED = 529
"""Anthropic's status for an overloaded server; 429 is for a key that has used up its share."""


class AnthropicReply(ErrorReply):
    """An error in Anthropic's format."""

    __slots__ = ()

    def body(self) -> bytes:
        """`{"type": "error", "error": {"type", "message"}, "request_id"}`, also as a stream's last event."""
        error = {"type": self.kind, "message": self.message}
        return msgspec.json.encode({"type": "error", "error": error, "request_id": self.request_id or None})


def anthropic_error(reply: ErrorReply) -> ErrorReply:
    """The same error in Anthropic's format."""
    status = _OVERLOADED if reply.code == "rate_limit_exceeded" else reply.status
    usual = "invalid_request_error" if status < 500 else "api_error"
    kind = _KINDS.get(status, usual)
    return AnthropicReply(status, reply.message, kind, reply.param, reply.code, reply.headers, reply.request_id)


def reply_on(scope: Scope, reply: ErrorReply) -> ErrorReply:
    """The error in the format of this exchange's path."""
    return anthropic_error(named(scope, reply)) if is_messages(scope["path"]) else reply


def named(scope: Scope, reply: ErrorReply) -> ErrorReply:
    """The error with its exchange's id, for a stream's encoder."""
    return replace(reply, request_id=scope.get("state", {}).get("exchange_id", ""))


def is_messages(path: str) -> bool:
    """Whether the path belongs to Anthropic's API."""
    return path == _MESSAGES or path.startswith(f"{_MESSAGES}/")


# Names of fields in the dialect of the request.
#
# A request of another dialect becomes a chat or completion request, whose checks name their own fields. This module
# converts those names to the client's.


class FieldWords:
    """Client's paths of fields; each replacement also applies to all paths below it."""

    def __init__(self, words: Mapping[str, str]) -> None:
        self._words = sorted(words.items(), key=lambda pair: -len(pair[0]))

    def word(self, path: str) -> str:
        """The client's path: `messages[2].content` to `input[4].content`. Unknown ones are returned unchanged."""
        for ours, theirs in self._words:
            if path == ours or (path.startswith(ours) and path[len(ours)] in ".["):
                return theirs + path[len(ours) :]
        return path

    @contextmanager
    def spoken(self) -> Iterator[None]:
        """Convert field names of errors that leave the block to the client's."""
        try:
            yield
        except RequestError as error:
            if error.param is not None and (theirs := self.word(error.param)) != error.param:
                error.args = (str(error).replace(f"'{error.param}'", f"'{theirs}'"), *error.args[1:])
                error.param = theirs
            raise
