"""JSON from outside, read to a bounded depth.

How deep a parser follows arrays within arrays before it gives up depends on the version of Python: 3.11 stops near a
thousand levels, 3.13 near ten thousand. What is refused must not depend on that, so the limit is ours.
"""

from array import array
from itertools import accumulate
from typing import Any, Generic, TypeVar, overload

import msgspec

T = TypeVar("T")
LARGEST_DEPTH = 128
"""Arrays and objects within one another; ten are rare in what servers answer."""


class JsonTooDeep(msgspec.DecodeError):
    """Arrays and objects are nested deeper than `LARGEST_DEPTH`."""

    def __init__(self) -> None:
        super().__init__(f"JSON is nested more than {LARGEST_DEPTH} deep")


def check_depth(text: bytes | str) -> None:
    """Check the nesting depth of a text; if it is not JSON, the brackets outside quotes count.

    Nearly free for a text with few brackets, and cheaper than decoding for all others.
    Raises: JsonTooDeep.
    """
    if isinstance(text, str):
        few = text.count("[") + text.count("{") <= LARGEST_DEPTH
    else:
        few = text.count(b"[") + text.count(b"{") <= LARGEST_DEPTH
    if not few and _depth(text) > LARGEST_DEPTH:
        raise JsonTooDeep


def _depth(text: bytes | str) -> int:
    """Nesting depth of arrays and objects; every step is one pass of C over the bytes."""
    if isinstance(text, str):
        text = text.encode("utf-8", "surrogatepass")
    if b"\\" in text:  # so that each remaining quote starts or ends a string
        text = text.replace(b"\\\\", b"").replace(b'\\"', b"")
    marks = text.translate(None, _NO_MARKS).replace(b'""', b"")
    outside = b"".join(marks.split(b'"')[::2])
    return max(accumulate(array("b", outside.translate(_STEPS))), default=0)


_NO_MARKS = bytes(set(range(256)) - set(b'"[]{}'))
_STEPS = bytes(1 if byte in b"[{" else 0xFF for byte in range(256))
"""Change of the nesting level by each byte, as a signed byte: +1 for an opening bracket, -1 for others."""


class Decoder(Generic[T]):
    """Decodes texts of one kind."""

    def __init__(self, kind: type[T]) -> None:
        self._decode = msgspec.json.Decoder(kind).decode

    def decode(self, text: bytes | str) -> T:
        """The text's value. Raises: one of `NOT_JSON`."""
        check_depth(text)
        return self._decode(text)


@overload
def decode(text: bytes | str) -> Any: ...  # noqa: ANN401
@overload
def decode(text: bytes | str, kind: type[T]) -> T: ...
def decode(text: bytes | str, kind: Any = Any) -> Any:
    """Decode a text as any value or as a kind supported by msgspec. Raises: one of `NOT_JSON`."""
    check_depth(text)
    return msgspec.json.decode(text, type=kind)
