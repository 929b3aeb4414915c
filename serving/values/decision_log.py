"""Decision logs: the inputs of a state machine, in order, and their outcomes.

    file    MAGIC, then frames: length, number, hash of this frame and all before it, MessagePack
    frames  header (the machine's parameters), then [call, outcome] ..., then an `End` if it was closed properly

A call is a value that can be carried out: `on(machine)`. Live, `perform` carries it out and the pair is written; in a
replay the same `perform` carries it out on a new machine and the outcomes are compared. So both run the same code, and
any input that is not in the call (a clock, randomness, the order of a set) shows as a difference.

Outcomes are written as plain values: short enough to store for every step, detailed enough to show a difference.
"""

import struct
import zlib
from array import array
from collections.abc import Callable, Iterable, Iterator
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import cache
from typing import Any, Protocol, TypeVar, cast

import msgspec
import xxhash

from serving.errors import DecisionLogError
from serving.values.sequence import HandoffTicket, SequenceSpec

MAGIC = b"cloudmatrix decision log 3\n"
SUFFIX = ".decisions"
MAX_FRAME_BYTES = 64 << 20
"""A larger length is damage, not a frame: a 1 M token prompt takes 5 MiB."""

_HEAD = struct.Struct("<IIQ")
_SCALARS = (int, str, bytes, float, type(None))

MachineT = TypeVar("MachineT", contravariant=True)


Note = Callable[[object, object], None]
"""Receives a call and its kept outcome; both no longer change."""


class Call(Protocol[MachineT]):
    """One call into a state machine, with all inputs that its outcome depends on."""

    def on(self, machine: MachineT) -> Any:  # noqa: ANN401 - result of the machine's method
        """Carry out the call. Raises: the machine's errors."""
        ...

    def keep(self, output: Any) -> object:  # noqa: ANN401 - as `on`
        """The part of an output to be written, copied if it may still change."""
        ...

    def facts(self, kept: Any) -> object:  # noqa: ANN401 - result of `keep`
        """The outcome as plain values. May be called later, in another thread."""
        ...


class CallRecord(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Base of all calls; each machine's calls form one tagged union."""

    def keep(self, output: Any) -> object:  # noqa: ANN401 - as `Call`
        """The output itself, since outputs are frozen values; calls with other outputs override this."""
        return output

    def facts(self, kept: Any) -> object:  # noqa: ANN401 - as `Call`
        """Short form of any value."""
        return plain(kept)

    def kind(self) -> str:
        """Name by which such calls are counted."""
        return type(self).__name__

    def title(self) -> str:
        """A short description of the call, for people."""
        name = getattr(self, "sequence_id", None) or getattr(getattr(self, "spec", None), "sequence_id", None)
        now = getattr(self, "now", None)
        return type(self).__name__ + (f" of {name}" if name else "") + (f" at {now:.6f} s" if now is not None else "")


class End(CallRecord, frozen=True):
    """End of the recording; without a reason, because the machine stopped."""

    reason: str = ""

    def on(self, machine: object) -> None:
        """Do nothing: the log has ended."""


class Raised(msgspec.Struct, frozen=True):
    """Outcome of a call that raised an error."""

    raised: str
    text: str


def perform(call: Call[MachineT], machine: MachineT) -> tuple[Any, object, Exception | None]:
    """Carry out a call.

    Returns: its output, the part of it to write, and its error instead of both. The caller may raise it.
    """
    try:
        output = call.on(machine)
    except Exception as error:
        return None, Raised(type(error).__name__, str(error)), error
    return output, call.keep(output), None


def outcome(call: Call[Any], kept: object) -> object:
    """A call's outcome in the form that is written, and compared in a replay."""
    return kept if isinstance(kept, Raised) else call.facts(kept)


def checksum(numbers: Iterable[int], *, signed: bool = False) -> int:
    """CRC-32 of numbers below 2^32, or of signed ones, as 32-bit words."""
    return zlib.crc32(array("i" if signed else "I", numbers))


def plain(value: object) -> object:
    """A frozen value as numbers, strings, lists and maps, without fields that have their default."""
    if isinstance(value, _SCALARS):
        return value
    if isinstance(value, tuple | list):
        return value if value and type(value[0]) in _SCALARS else [plain(one) for one in value]
    if (shorten := _SHORTER.get(type(value))) is not None:
        return shorten(value)
    kind = type(value)
    if is_dataclass(kind) or issubclass(kind, msgspec.Struct):
        encoded = {name: plain(one) for name, default in _fields(kind) if (one := getattr(value, name)) != default}
        return {"is": kind.__name__, **encoded}
    return value  # an enum, which msgspec can write


def _short_spec(spec: SequenceSpec) -> object:
    tokens = (len(spec.prompt), len(spec.output), checksum(spec.output))
    encoded = {
        "id": spec.sequence_id,
        "tokens": tokens,
        "time_left_s": spec.time_left_s,
        "sampling": str(spec.sampling),
    }
    return {**encoded, "whole": True} if spec.whole else encoded


_SHORTER: dict[type, Callable[[Any], object]] = {
    SequenceSpec: _short_spec,
    HandoffTicket: lambda ticket: ticket.ticket_id,
}


@cache
def _fields(kind: type) -> tuple[tuple[str, object], ...]:
    """Names and defaults."""
    if issubclass(kind, msgspec.Struct):
        found = msgspec.structs.fields(kind)
        return tuple((one.name, MISSING if one.default is msgspec.NODEFAULT else one.default) for one in found)

    def default(field: Field[Any]) -> object:
        return MISSING if field.default is MISSING else field.default

    return tuple((field.name, default(field)) for field in fields(cast(Any, kind)))


class LogEncoder:
    """Encoder of a log's bytes."""

    def __init__(self) -> None:
        self._encode = msgspec.msgpack.Encoder().encode
        self._number = self._hash = 0

    def begin(self, header: object) -> bytes:
        """The start of a file."""
        self._number = self._hash = 0
        return MAGIC + self._frame(header)

    def pair(self, call: Call[Any], kept: object) -> bytes:
        """The frame of one call of a core, with what is kept of its outcome."""
        return self._frame((call, outcome(call, kept)))

    def _frame(self, value: object) -> bytes:
        body = self._encode(value)
        number, self._hash = self._number, xxhash.xxh3_64_intdigest(body, self._hash)
        self._number += 1
        return _HEAD.pack(len(body), number, self._hash) + body


class Frames:
    """The frames of a whole file, in order.

    The file of a killed writer may end anywhere; a last, unfinished frame is omitted.
    """

    def __init__(self, data: bytes, name: str) -> None:
        """
        Args:
            name: of the file, for messages.
        Raises: DecisionLogError if it is no decision log.
        """
        if not data.startswith(MAGIC):
            raise DecisionLogError(f"{name} is not a decision log of this version; it must begin with {MAGIC!r}")
        self._data = data
        self._name = name
        self.truncated = False
        """Whether the last frame was left out; known after the last one."""

    def __iter__(self) -> Iterator[memoryview]:
        """Raises: DecisionLogError at a damaged frame."""
        data, at, end = memoryview(self._data), len(MAGIC), len(self._data)
        expected = chain = 0
        while at < end:
            if at + _HEAD.size > end:
                self.truncated = True
                return
            length, number, check = _HEAD.unpack_from(data, at)
            if length > MAX_FRAME_BYTES:
                raise DecisionLogError(f"{self._name} is damaged at byte {at}: a frame of {length} bytes")
            body = data[at + _HEAD.size : at + _HEAD.size + length]
            if len(body) < length:
                self.truncated = True
                return
            if number != expected:
                raise DecisionLogError(
                    f"{self._name} is damaged at byte {at}: frame {number} stands where frame {expected} should; some "
                    "were left out, doubled or swapped"
                )
            chain = xxhash.xxh3_64_intdigest(body, chain)
            if chain != check:
                raise DecisionLogError(
                    f"{self._name} is damaged at byte {at}: the checksum of frame {number} is wrong; it, or one before "
                    "it, is not the one that was written"
                )
            expected += 1
            yield body
            at += _HEAD.size + length
