"""Request bodies: read within a limit, declared as JSON, validated against a wire model."""

from typing import TypeVar

from pydantic import ValidationError
from starlette.requests import ClientDisconnect, Request

from serving.api.errors import UnsupportedMediaTypeError, from_validation
from serving.api.schema import WireModel
from serving.errors import PayloadTooLargeError

Body = TypeVar("Body", bound=WireModel)


async def read_body(request: Request, limit: int) -> bytes:
    """The whole body, refused as soon as more than `limit` bytes are announced or have arrived.

    Raises: PayloadTooLargeError, ClientDisconnect.
    """
    announced = request.headers.get("content-length", "")
    if announced.isdecimal() and int(announced) > limit:
        raise _too_large(limit)
    chunks: list[bytes] = []
    size = 0
    while True:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        chunk = message.get("body", b"")
        size += len(chunk)
        if size > limit:
            raise _too_large(limit)
        chunks.append(chunk)
        if not message.get("more_body", False):
            return b"".join(chunks)


async def parse_body(request: Request, model: type[Body], limit: int) -> Body:
    """Read and validate. `body_size` of the request's state is then the body's length in bytes.

    The type must be declared: a page of any web site can send bodies without one, but not JSON, to a server that did
    not invite it.

    Raises: UnsupportedMediaTypeError, PayloadTooLargeError, InvalidRequestError, ClientDisconnect.
    """
    declared = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if declared != "application/json" and not declared.endswith("+json"):
        what = f"'{declared[:80]}'" if declared else "nothing"
        raise UnsupportedMediaTypeError(f"the body must be declared as 'Content-Type: application/json', not {what}")
    raw = await read_body(request, limit)
    request.state.body_size = len(raw)
    try:
        return model.model_validate_json(raw)
    except ValidationError as error:
        raise from_validation(error) from error


def _too_large(limit: int) -> PayloadTooLargeError:
    return PayloadTooLargeError(f"the request body is larger than the limit of {limit} bytes; send less at once")
