"""Events of a response that is generated again after its gateway was lost: those already stored are left out.

The second run makes the same text, but its events are cut in other places. So text is counted in characters, and only
the other events, which do not depend on the cuts, one by one.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from hardware.nesting import parse_json
from serving.errors import EngineError
from serving.gateway.api.responses.form import ResponseEvents

Json = dict[str, Any]
LAST_EVENTS = ("response.completed", "response.incomplete", "response.failed")
_REPEATED = ("response.queued", "response.in_progress")
"""Events that a silent stream repeats."""
_END = b"\n\n"


def split_events(body: bytes) -> list[bytes]:
    """The single events of encoded ones."""
    return [one + _END for one in body.split(_END)[:-1]]


def payload_of(event: bytes) -> Json:
    """The JSON object of an encoded event."""
    payload: Json = parse_json(event[event.index(b"\ndata: ") + 7 :])
    return payload


def encoded_event(payload: Json) -> bytes:
    """An event as a stream sends it."""
    name: str = payload["type"]
    return b"event: " + name.encode() + b"\ndata: " + msgspec.json.encode(payload) + _END


@dataclass(slots=True)
class _Stored:
    """Stored deltas of one item."""

    text: str = ""
    logprobs: int = 0
    read: int = 0
    """Characters that the second run has made again."""
    passed: int = 0
    """Log-probabilities that it has made again."""


class Resumption:
    """The events of the second run that are new, with the numbers that follow the stored ones.

    Args:
        stored: events of the first run, in order; none if there was none.
    """

    def __init__(self, stored: Iterable[Json] = ()) -> None:
        self.number = 0
        """Of the next event."""
        self._texts: dict[str, _Stored] = {}
        self._marks = 0
        """Stored events that are no deltas, without repetitions."""
        self._made = 0
        """The same, of the second run."""
        seen: set[str] = set()
        for event in stored:
            self.number += 1
            if _is_delta(event):
                text = self._texts.setdefault(event["item_id"], _Stored())
                text.text += event["delta"]
                text.logprobs += len(event.get("logprobs") or ())
            elif event["type"] not in seen:
                self._marks += 1
                seen |= {event["type"]} & set(_REPEATED)

    def caught_up(self) -> bool:
        """Whether the second run has made all that was stored."""
        return self._made >= self._marks and all(one.read == len(one.text) for one in self._texts.values())

    def fresh(self, events: Sequence[bytes]) -> list[bytes]:
        """The new events among those of the second run.

        Raises: EngineError if the second run makes another text.
        """
        fresh = []
        for payload in map(payload_of, events):
            new = self._rest(payload) if _is_delta(payload) else self._mark(payload)
            if new is not None:
                fresh.append(encoded_event({**new, "sequence_number": self.number}))
                self.number += 1
        return fresh

    def _mark(self, event: Json) -> Json | None:
        self._made += 1
        return event if self._made > self._marks or event["type"] in LAST_EVENTS else None

    def _rest(self, event: Json) -> Json | None:
        """The part of a delta that was not stored."""
        stored = self._texts.get(event["item_id"])
        if stored is None:
            return event
        known = stored.text[stored.read : stored.read + len(event["delta"])]
        if not event["delta"].startswith(known):
            raise EngineError("the response could not be continued after its gateway was lost: it has changed")
        stored.read += len(known)
        rest = {**event, "delta": event["delta"][len(known) :]}
        if "logprobs" in event:
            skipped = min(len(event["logprobs"]), stored.logprobs - stored.passed)
            stored.passed += skipped
            rest["logprobs"] = event["logprobs"][skipped:]
        return rest if rest["delta"] else None


class ContinuedEvents:
    """The events of an encoder that are not stored yet, encoded, with numbers that follow the stored ones."""

    def __init__(self, encoder: ResponseEvents, stored: Iterable[Json]) -> None:
        self._encoder = encoder
        self._resumption = Resumption(stored)

    def fresh(self, body: bytes) -> list[bytes]:
        """The new ones among further events of the encoder. Raises: EngineError."""
        events, resumption = split_events(body), self._resumption
        if resumption.caught_up():  # from then on the encoder's own numbers are right
            resumption.number += len(events)
            return events
        fresh = resumption.fresh(events)
        if resumption.caught_up():
            self._encoder.number = resumption.number
        return fresh

    def silence(self) -> list[bytes]:
        """An event that repeats the state; none before all stored ones were made again."""
        return self.fresh(self._encoder.silence()) if self._resumption.caught_up() else []

    def count_from(self, number: int) -> None:
        """Number the next event so, as earlier ones were not stored."""
        self._encoder.number = self._resumption.number = number


def ended_early(stored: Sequence[Json], status: str, error: Json | None) -> Json:
    """The last event of a response that ends without another run, with the items that are complete.

    Args:
        stored: its events, at least one.
        status: failed or cancelled.
    """
    output = [event["item"] for event in stored if event["type"] == "response.output_item.done"]
    response = {**stored[0]["response"], "status": status, "error": error, "output": output}
    kind = "response.failed" if status == "failed" else "response.incomplete"
    return {"type": kind, "sequence_number": len(stored), "response": response}


def _is_delta(event: Json) -> bool:
    return bool(event["type"].endswith(".delta"))
