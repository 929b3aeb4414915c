"""Decision logs in memory: written by recorded engines, inspected, and altered."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import msgspec

from serving.instance.core.engine_record import EngineHeader, recorded
from serving.values.decision_log import End, Frames, LogEncoder
from tests.fakes.engine_calls import EngineCalls


class MemoryLog:
    """The log that `DecisionWriter` would write."""

    def __init__(self, engine: EngineCalls) -> None:
        self._encoder = LogEncoder()
        header = EngineHeader("bench", engine.settings, engine.scheduler.blocks.pool.num_blocks)
        self.data = bytearray(self._encoder.begin(header))
        engine.driven = recorded(engine, self.note)
        self.engine = engine

    def note(self, call: Any, kept: object) -> None:
        """Record one call."""
        self.data += self._encoder.pair(call, kept)

    def close(self) -> bytes:
        """Write the end of the log."""
        self.note(End(), None)
        return bytes(self.data)


def pairs(data: bytes) -> list[tuple[Any, Any]]:
    """Calls and outcomes of a log, undecoded: tagged lists and plain values."""
    return [tuple(msgspec.msgpack.decode(body)) for body in list(Frames(data, "log"))[1:]]


def gateway_kinds(data: bytes) -> Counter[str]:
    """Contents of a gateway's log, by kind: inputs and the instance events in them, effects and the commands in them.

    Routes count as `RoutePrefill` and `RouteDecode`.
    """
    found: Counter[str] = Counter()
    for (_, event, *_), effects in [pair for pair in pairs(data) if pair[0][0] == "GatewayCall"]:
        found[event[0]] += 1
        if event[0] == "InstanceSays":
            found.update(news[0] for news in event[2])
        for effect in effects:
            kind = effect["is"]
            if kind == "Routed":
                kind = "RouteDecode" if effect["decode"] else "RoutePrefill"
            found[effect["order"]["is"] if kind == "Send" else kind] += 1
    return found


def doctored(data: bytes, change: Callable[[list[tuple[Any, Any]]], None]) -> bytes:
    """The same log, well formed, with its pairs changed."""
    header, *_ = Frames(data, "log")
    changed = pairs(data)
    change(changed)
    encoder = LogEncoder()
    text = encoder.begin(msgspec.Raw(header))
    return text + b"".join(encoder._frame(pair) for pair in changed)
