"""Forms with files (`multipart/form-data`, RFC 7578) that are in memory as a whole, as uploads are."""

from email.message import Message
from email.parser import HeaderParser
from email.utils import collapse_rfc2231_value

from msgspec import Struct

from serving.errors import InvalidRequestError
from serving.gateway.api.http.errors import UnsupportedMediaTypeError

MOST_PARTS = 16
_MOST_HEAD_BYTES = 4096
_BLANK = b"\r\n\r\n"


class FormPart(Struct, frozen=True):
    """One field. `filename` is None unless it is a file."""

    content: bytes
    filename: str | None


def boundary_of(content_type: str) -> bytes:
    """The text that separates the parts of a form.

    Raises: UnsupportedMediaTypeError if the body is no form.
    """
    header = Message()
    header["content-type"] = content_type
    boundary = header.get_param("boundary")
    if header.get_content_type() != "multipart/form-data" or not isinstance(boundary, str) or not boundary:
        raise UnsupportedMediaTypeError(
            "a file must be sent as 'Content-Type: multipart/form-data' with a boundary, as OpenAI's clients do"
        )
    return boundary.encode("latin-1", "replace")


def parse_form(body: bytes, boundary: bytes) -> dict[str, FormPart]:
    """The fields of a form, by name.

    Raises: InvalidRequestError if it is damaged, or names a field twice.
    """
    delimiter = b"\r\n--" + boundary
    # Each part lies between two delimiters; the first may stand at the very start, without the line's end.
    place = 0 if body.startswith(delimiter[2:]) else body.find(delimiter) + 2
    fields: dict[str, FormPart] = {}
    if place == 1:
        raise _damaged("it has no part")
    place += len(delimiter) - 2
    while body[place : place + 2] != b"--":
        end = body.find(delimiter, place)
        line = body.find(b"\r\n", place, place + 80)
        if end < 0 or line < 0 or body[place:line].strip(b" \t"):
            raise _damaged("a part has no end")
        name, part = _part(body, line + 2, end)
        if name in fields:
            raise _damaged(f"it has the field '{name[:40]}' twice")
        if len(fields) == MOST_PARTS:
            raise _damaged(f"it has more than {MOST_PARTS} fields")
        fields[name] = part
        place = end + len(delimiter)
    return fields


def _part(body: bytes, start: int, end: int) -> tuple[str, FormPart]:
    head_end = body.find(_BLANK, start, min(end, start + _MOST_HEAD_BYTES))
    if head_end < 0:
        raise _damaged("a part has no headers, or too long ones")
    head = HeaderParser().parsestr(body[start:head_end].decode("utf-8", "replace"))
    name = head.get_param("name", header="content-disposition")
    if head.get_content_disposition() != "form-data" or not isinstance(name, str):
        raise _damaged("a part has no name")
    filename = head.get_param("filename", header="content-disposition")
    try:
        text = None if filename is None else collapse_rfc2231_value(filename)
    except ValueError:  # a charset that cannot be the name of one
        raise _damaged("a file name is not readable") from None
    return name, FormPart(body[head_end + len(_BLANK) : end], text)


def _damaged(why: str) -> InvalidRequestError:
    return InvalidRequestError(f"the form is not valid multipart/form-data: {why}", code="invalid_form")
