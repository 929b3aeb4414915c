"""Replays a decision log: the recorded calls on a fresh machine, every outcome compared with the recorded one.

The comparison stops at the first difference: the machine is in another state from there on.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from serving.errors import UNREADABLE, DecisionLogError, ServingError
from serving.gateway.core.gateway import Gateway
from serving.gateway.core.gateway_record import GatewayCall
from serving.gateway.core.settings import GatewaySettings
from serving.instance.core.engine import InstanceEngine
from serving.instance.core.engine_record import EngineCall, EngineHeader
from serving.regular_file import open_regular
from serving.values.decision_log import CallRecord, End, Frames, outcome, perform

_ABSENT = "absent"
_MOST = 300
"""Characters of a value that a message shows."""


@dataclass(frozen=True, slots=True)
class Difference:
    """The first outcome that differs from the recorded one.

    Args:
        number: of the call in its log, from 1.
        call: the call in a few words.
        where: path to the value inside the outcome.
        expected, got: recorded and replayed value at that path.
    """

    number: int
    call: str
    where: str
    expected: str
    got: str

    def __str__(self) -> str:
        return f"call {self.number}, {self.call}: {self.where} was {self.expected}, is now {self.got}"


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """Result of replaying one log.

    Args:
        kind, name: `engine` or `gateway`, and which.
        version: of the program that wrote it.
        calls: replayed, by kind, most frequent first.
        difference: None = identical.
        ending: how the log ends: empty for a proper end, else in words.
    """

    kind: str
    name: str
    version: str
    calls: dict[str, int]
    difference: Difference | None
    ending: str

    @property
    def identical(self) -> bool:
        """Every outcome was the recorded one."""
        return self.difference is None

    @property
    def complete(self) -> bool:
        """The log is complete."""
        return not self.ending

    @property
    def total(self) -> int:
        """Calls replayed."""
        return sum(self.calls.values())


def replay(path: Path) -> ReplayResult:
    """Replay one file from its beginning.

    Raises: DecisionLogError if it cannot be read, is no decision log or is damaged.
    """
    try:
        with open_regular(path) as file:
            data = file.read()
    except OSError as error:
        raise DecisionLogError(f"{path} cannot be read: {error.strerror or error}") from error
    return replay_log(data, str(path))


def replay_log(data: bytes, path: str) -> ReplayResult:
    """The same for a file that was read.

    Args:
        path: for messages.
    Raises: DecisionLogError if it is no decision log or is damaged.
    """
    frames = Frames(data, path)
    bodies = iter(frames)
    machine: Any
    union: Any
    match _header(bodies, path):
        case EngineHeader() as header:
            kind, union, machine = "engine", EngineCall | End, _engine(header, path)
        case GatewaySettings() as header:
            kind, union, machine = "gateway", GatewayCall | End, Gateway(header)
    counts: Counter[str] = Counter()
    difference, end = _compare(_pairs(bodies, union, path), machine, counts)
    if end is None and difference is None:
        ending = "the last frame is unfinished" if frames.truncated else "no end was written"
        ending += ": its process was killed, it still runs, or the file was cut"
        if not counts:
            ending = f"not one call is in it; {ending}"
    else:
        ending = end.reason if end is not None else ""
    return ReplayResult(kind, header.name, header.version, dict(counts.most_common()), difference, ending)


def _engine(header: EngineHeader, path: str) -> InstanceEngine:
    try:
        return InstanceEngine(header.settings, header.num_blocks)
    except ServingError as error:
        raise DecisionLogError(f"{path}: no engine can be built from its header: {error}") from error


def _header(bodies: Iterator[memoryview], path: str) -> EngineHeader | GatewaySettings:
    body = next(bodies, None)
    if body is None:
        raise DecisionLogError(f"{path} is empty: not even its header was written")
    try:
        return msgspec.msgpack.decode(body, type=EngineHeader | GatewaySettings)
    except UNREADABLE as error:
        raise DecisionLogError(f"{path}: its header is not of this version: {error}") from error


def _pairs(bodies: Iterator[memoryview], union: Any, path: str) -> Iterator[tuple[Any, bytes]]:  # noqa: ANN401
    """Calls with their recorded outcomes, still encoded."""
    decoder = msgspec.msgpack.Decoder(tuple[union, msgspec.Raw])
    for number, body in enumerate(bodies, 1):
        try:
            call, recorded = decoder.decode(body)
        except UNREADABLE as error:
            raise DecisionLogError(f"{path}: call {number} is not of this version: {error}") from error
        yield call, bytes(recorded)


def _compare(
    pairs: Iterator[tuple[Any, bytes]], machine: object, counts: Counter[str]
) -> tuple[Difference | None, End | None]:
    """Returns: the first difference, and the end frame if there was one before."""
    encoder = msgspec.msgpack.Encoder()
    for number, (call, recorded) in enumerate(pairs, 1):
        if isinstance(call, End):
            if next(pairs, None) is not None:
                raise DecisionLogError(f"call {number + 1} is after the end of the log")
            return None, call
        _, kept, error = perform(call, machine)
        if isinstance(error, DecisionLogError):
            return Difference(number, call.title(), "the call", "possible", str(error)), None
        counts[call.kind()] += 1
        got = encoder.encode(outcome(call, kept))
        if got != recorded:
            return _difference(number, call, recorded, got), None
    return None, None


def _difference(number: int, call: CallRecord, recorded: bytes, got: bytes) -> Difference:
    where, old, new = first_difference(msgspec.msgpack.decode(recorded), msgspec.msgpack.decode(got))
    return Difference(number, call.title(), where or "the outcome", old, new)


def first_difference(old: object, new: object, where: str = "") -> tuple[str, str, str]:
    """The first place where two plain values that are not equal differ.

    Returns: path to it, and both values. Short lists of numbers and names are shown whole.
    """
    if isinstance(old, dict) and isinstance(new, dict):
        for key in (*old, *(key for key in new if key not in old)):
            one, other = old.get(key, _ABSENT), new.get(key, _ABSENT)
            if one != other:
                return first_difference(one, other, f"{where}.{key}" if where else str(key))
    if isinstance(old, list) and isinstance(new, list) and _nested(old, new):
        for index, (one, other) in enumerate(zip(old, new, strict=False)):
            if one != other:
                return first_difference(one, other, f"{where}[{index}]")
        return f"length of {where or 'the outcome'}", str(len(old)), str(len(new))
    return where, _show(old), _show(new)


def _nested(*values: list[Any]) -> bool:
    return any(isinstance(one, list | dict) for value in values for one in value)


def _show(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _MOST else f"{text[:_MOST]}... ({len(text)} characters)"
