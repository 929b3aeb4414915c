"""Requests that no server should accept, each valid as HTTP and wrong in one way as a request.

They show whether a server refuses with a 4xx instead of failing (5xx), hanging or performing an unrequested action.
HTTP's framing stays right (the length is that of the body), so that what is tested is the server and not its proxy.
"""

from collections.abc import Callable
from typing import Any

import msgspec

from loadgen import json_text
from loadgen.client.request import JSON_TYPE, PreparedRequest, RequestWriter
from loadgen.errors import NOT_JSON

_NESTING = 5_000
"""Deeper than the recursion limit of any parser in Python, and ten kilobytes at most."""


def _fields(body: bytes) -> dict[str, Any]:
    """The body's fields; a plain body is used if a replayed one is not a JSON object."""
    try:
        fields = json_text.decode(body)
    except NOT_JSON:
        fields = None
    return fields if isinstance(fields, dict) else {"model": "model", "prompt": "text", "max_tokens": 1}


def _changed(**changes: object) -> Callable[[bytes], bytes]:
    return lambda body: msgspec.json.encode(_fields(body) | changes)


def _without(*names: str) -> Callable[[bytes], bytes]:
    return lambda body: msgspec.json.encode({k: v for k, v in _fields(body).items() if k not in names})


def _length(value: object) -> Callable[[bytes], bytes]:
    """The limit of the response's length, under each name that servers use for it."""

    def change(body: bytes) -> bytes:
        fields = _fields(body)
        names = [name for name in ("max_tokens", "max_completion_tokens") if name in fields] or ["max_tokens"]
        return msgspec.json.encode(fields | dict.fromkeys(names, value))

    return change


def _wrong_prompt(body: bytes) -> bytes:
    fields = _fields(body)
    return msgspec.json.encode(fields | {"messages" if "messages" in fields else "prompt": {"no": "prompt"}})


def _nested(body: bytes) -> bytes:
    fields = msgspec.json.encode(_fields(body))
    return fields[:-1] + b',"logit_bias":' + b"[" * _NESTING + b"]" * _NESTING + b"}"


def _bad_utf8(body: bytes) -> bytes:
    return msgspec.json.encode(_fields(body))[:-1] + b',"user":"\xff\xfe\xc3"}'


MALFORMATIONS: tuple[tuple[str, Callable[[bytes], bytes]], ...] = (
    ("not JSON", lambda body: b"this is no JSON: " + body[:64]),
    ("body cut off", lambda body: body[: max(1, len(body) // 2)].rstrip(b"}")),
    ("empty body", lambda body: b""),
    ("an array instead of an object", lambda body: b"[" + body + b"]"),
    ("no prompt", _without("prompt", "messages")),
    ("prompt of the wrong type", _wrong_prompt),
    ("negative max_tokens", _length(-1)),
    ("max_tokens of the wrong type", _length("many")),
    ("temperature of the wrong type", _changed(temperature="hot")),
    ("unknown model", _changed(model="no-such-model/at-all")),
    ("nested too deeply", _nested),
    ("invalid UTF-8", _bad_utf8),
    ("wrong content type", lambda body: body),
)
_WRONG_TYPE = "image/png"


def malformation_name(index: int) -> str:
    """Name of malformation `index`; indices go round."""
    return MALFORMATIONS[index % len(MALFORMATIONS)][0]


def malform(writer: RequestWriter, request: PreparedRequest, index: int) -> PreparedRequest:
    """The request, made wrong in one way.

    Args:
        index: which of `MALFORMATIONS`; any number, taken modulo their count.
    """
    name, change = MALFORMATIONS[index % len(MALFORMATIONS)]
    content_type = _WRONG_TYPE if name == "wrong content type" else JSON_TYPE
    return writer.prepare(change(request.body), request.request_id, content_type)
