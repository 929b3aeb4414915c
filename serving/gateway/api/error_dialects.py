"""Errors in the format of the requested path's API: Anthropic's below /v1/messages, OpenAI's otherwise."""

from dataclasses import replace

import msgspec
from starlette.types import Scope

from serving.gateway.api.errors import ErrorReply

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
