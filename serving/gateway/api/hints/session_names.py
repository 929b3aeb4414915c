"""The session that a request names, in the ways of different clients."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from starlette.requests import Request
from xxhash import xxh3_64_hexdigest

from hardware.nesting import parse_json
from serving.gateway.api.schema import ChatMessage
from serving.gateway.core.kv_hints import SessionName, check_session

_CLAUDE, _CLAUDE_AGENT = b"x-claude-code-session-id", b"x-claude-code-agent-id"
_SESSION, _THREAD = b"session-id", b"thread-id"
_HEADERS = frozenset((_CLAUDE, _CLAUDE_AGENT, _SESSION, _THREAD))
_USER_ID = re.compile(r"_session_([0-9a-f-]{8,64})\Z")
"""End of the `metadata.user_id` of older releases of Claude Code."""


def session_headers(request: Request) -> dict[bytes, str]:
    """The headers that name a session; empty for nearly all clients."""
    found = [one for one in request.scope["headers"] if one[0] in _HEADERS]
    return {name: value.decode("latin-1") for name, value in found} if found else {}


def named_session(
    headers: Mapping[bytes, str],
    key: str | None = None,
    metadata: Mapping[str, Any] | None = None,
    messages: Sequence[ChatMessage] = (),
) -> SessionName | None:
    """The session of a request; None if it names none.

    Args:
        headers: as `session_headers` returns them.
        key: the request's `prompt_cache_key`. Many conversations may share it, so each is a branch of its own.
        metadata: of a Messages request.
        messages: the conversation.
    Raises: InvalidRequestError, which names the field or header.
    """
    if key is not None:
        check_session(key, "prompt_cache_key")
    if (session := headers.get(_CLAUDE)) is not None:
        check_session(session, _CLAUDE.decode())
        return SessionName(session, _branch(headers.get(_CLAUDE_AGENT, ""), _CLAUDE_AGENT))
    if (session := headers.get(_SESSION, headers.get(_THREAD))) is not None:
        check_session(session, (_SESSION if _SESSION in headers else _THREAD).decode())
        thread = _branch(headers.get(_THREAD, ""), _THREAD)
        return SessionName(session, "" if thread == session else thread)
    if key is not None:
        return SessionName(key, _opening(messages))
    return None if metadata is None else _of_user(metadata.get("user_id"))


def _opening(messages: Sequence[ChatMessage]) -> str:
    """Digest of a conversation's first turn of the user, which all of its later requests repeat."""
    first = next((one.content for one in messages if one.role == "user"), None)
    return "" if first is None else xxh3_64_hexdigest(str(first).encode("utf-8", "surrogatepass"))


def _branch(name: str, header: bytes) -> str:
    return check_session(name, header.decode()) if name else ""


def _of_user(user: object) -> SessionName | None:
    """The session within `metadata.user_id`: JSON text with `session_id`, or the end of a name."""
    if not isinstance(user, str) or not user:
        return None
    if (end := _USER_ID.search(user)) is not None:
        return SessionName(end[1])
    if not user.startswith("{") or len(user) > _LONGEST_USER:
        return None
    try:
        value = parse_json(user)
    except ValueError:
        return None
    name = value.get("session_id") if isinstance(value, dict) else None
    return SessionName(check_session(name, "metadata.user_id")) if isinstance(name, str) else None


_LONGEST_USER = 4096
"""Characters of a `metadata.user_id` that is read."""
