"""Request bodies: read within a limit, declared as JSON, validated against a wire model."""

from collections import Counter
from typing import TypeVar

from pydantic import ValidationError
from pydantic_core import from_json
from starlette.requests import ClientDisconnect, Request

from serving.errors import InvalidRequestError, OverloadedError, PayloadTooLargeError
from serving.gateway.api.foreign_fields import KWARGS, MESSAGE
from serving.gateway.api.http.errors import UnsupportedMediaTypeError, from_validation
from serving.gateway.api.http.tenant import tenant_of
from serving.gateway.api.media import media_kind
from serving.gateway.api.schema import ChatMessage, ChatTemplateFields, GenerationRequest, WireModel
from serving.gateway.api.tokens.schema import GenerateTokensRequest
from serving.gateway.api.unknown_fields import ignored_fields, unsupported

Body = TypeVar("Body", bound=WireModel)

_MESSAGE_KEYS = dict.fromkeys(("role", "content", "tool_calls", "tool_call_id", "reasoning_content"))
_PART_KEYS = dict.fromkeys(("type", "text", "refusal"))
_DIGITS = 18
"""Digits of a stated length that are read; Python refuses to read thousands."""


def announced_bytes(request: Request) -> int:
    """The length of the body that its client states; 0 = none, or no number."""
    announced = request.headers.get("content-length", "")
    return int(announced[:_DIGITS]) if announced.isdecimal() else 0


async def read_body(request: Request, limit: int) -> bytes:
    """The whole body, refused as soon as the announced or received bytes exceed `limit`.

    Raises: PayloadTooLargeError, OverloadedError, ClientDisconnect.
    """
    if announced_bytes(request) > limit:
        raise _too_large(limit)
    body, more = await _piece(request)
    if not more and len(body) <= limit:
        return body
    room: BodyRoom = request.app.state.body_room
    key, held = tenant_of(request).key, 0
    whole = bytearray()
    try:
        while True:
            if len(whole) + len(body) > limit:
                raise _too_large(limit)
            room.take(key, len(body))
            held += len(body)
            whole += body
            if not more:
                return bytes(whole)
            body, more = await _piece(request)
    finally:
        room.give(key, held)


async def _piece(request: Request) -> tuple[bytes, bool]:
    """The next piece, and whether there are more.

    Raises: ClientDisconnect.
    """
    message = await request.receive()
    if message["type"] == "http.disconnect":
        raise ClientDisconnect
    return message.get("body", b""), message.get("more_body", False)


async def parse_body(request: Request, model: type[Body], limit: int) -> Body:
    """Read and validate. The request's state then has `body_size`, the body's length in bytes, and `sought`, whether
    it has `WireModel.SOUGHT`.

    The content type must be declared: a page of any web site can send undeclared bodies to this server, but not JSON.

    Raises: UnsupportedMediaTypeError, PayloadTooLargeError, OverloadedError, InvalidRequestError, ClientDisconnect.
    """
    declared = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if declared != "application/json" and not declared.endswith("+json"):
        what = f"'{declared[:80]}'" if declared else "nothing"
        raise UnsupportedMediaTypeError(f"the body must be declared as 'Content-Type: application/json', not {what}")
    packed = request.headers.get("content-encoding", "").strip().lower()
    if packed not in ("", "identity"):
        message = f"a body with 'Content-Encoding: {packed[:80]}' is not unpacked here; send it as it is"
        raise UnsupportedMediaTypeError(message, code="unsupported_content_encoding")
    raw = await read_body(request, limit)
    request.state.body_size = len(raw)
    request.state.sought = bool(model.SOUGHT) and model.SOUGHT in raw
    try:
        body = model.model_validate_json(raw)
    except ValidationError as error:
        raise from_validation(error) from error
    _refuse_numbers_beyond_json(raw)
    request.state.ignored_fields = _ignored(body)
    if isinstance(body, GenerationRequest | GenerateTokensRequest):
        request.state.request_id = body.request_id
    return body


def _refuse_numbers_beyond_json(raw: bytes) -> None:
    """Refuse NaN and Infinity, which pydantic accepts in fields of any type and JSON does not have.

    Raises: InvalidRequestError.
    """
    if b"NaN" in raw or b"Infinity" in raw:  # rare, and usually within a text
        try:
            from_json(raw, allow_inf_nan=False)
        except ValueError as error:
            raise InvalidRequestError(f"the request body is not valid JSON: {error}", code="invalid_json") from error


def _ignored(body: WireModel) -> list[str]:
    """Fields of a body, and of its objects, that have no effect in this server.

    Raises: InvalidRequestError for a field that must not be ignored.
    """
    own = body.__dict__  # declared by the route's model and so validated; other routes' fields may have any value
    names = ignored_fields(body.model_extra or {}, own, body.FOREIGN)
    if isinstance(options := own.get("stream_options"), WireModel):
        names += ignored_fields(options.model_extra or {}, options.__dict__, {}, "stream_options.")
    for name in ("thinking", "output_config", "text", "reasoning", "sampling_params"):
        if isinstance(part := own.get(name), WireModel):
            names += ignored_fields(part.model_extra or {}, part.__dict__, part.FOREIGN, f"{name}.")
    _refuse_reserved(body)
    if isinstance(body, ChatTemplateFields):
        for index, message in enumerate(own.get("messages") or ()):
            names += _ignored_in_message(message, f"messages[{index}].")
    return names


def _refuse_reserved(body: WireModel) -> None:
    """Refuse template variables that other fields set, because their values would be lost.

    Raises: InvalidRequestError.
    """
    for name, value in (body.__dict__.get("chat_template_kwargs") or {}).items():
        if name in KWARGS and not KWARGS[name].changes_nothing(value, body.__dict__):
            raise unsupported(f"chat_template_kwargs.{name}", KWARGS[name].ours)


def _ignored_in_message(message: ChatMessage, path: str) -> list[str]:
    """Unknown keys of text parts. A message's own unknown keys go to the template; a misspelt one is an error."""
    ignored_fields(message.model_extra or {}, _MESSAGE_KEYS, MESSAGE, path)
    names: list[str] = []
    if isinstance(message.content, list):
        for index, part in enumerate(message.content):
            if isinstance(part, dict) and media_kind(part) is None:
                names += ignored_fields(part, _PART_KEYS, {}, f"{path}content[{index}].")
    return names


def _too_large(limit: int) -> PayloadTooLargeError:
    return PayloadTooLargeError(f"the request body is larger than the limit of {limit} bytes; send a smaller one")


# Limit on the bytes of all request bodies together while they arrive.
#
# Each body has a limit of its own, but thousands may arrive slowly at the same time. A body that arrives in one piece
# is not counted, so ordinary requests pass however many others are in flight.

BODIES = 64
"""Bodies of the largest size that may be in flight; half of them for one key."""
RETRY_S = 1.0


class BodyRoom:
    """Budget of one gateway.

    Args:
        largest: largest body allowed [bytes].
    """

    def __init__(self, largest: int) -> None:
        self._limit = BODIES * largest
        self._held: Counter[str] = Counter()

    @property
    def held(self) -> int:
        """Bytes of bodies in flight."""
        return self._held.total()

    def take(self, key: str, size: int) -> None:
        """Reserve bytes of a body that have arrived.

        Raises: OverloadedError; nothing is reserved then.
        """
        if self.held + size > self._limit or self._held[key] + size > self._limit // 2:
            raise OverloadedError("too many large request bodies are in progress", retry_after_s=RETRY_S)
        self._held[key] += size

    def give(self, key: str, size: int) -> None:
        """Release the bytes reserved for a body."""
        self._held[key] -= size
        if not self._held[key]:
            del self._held[key]
