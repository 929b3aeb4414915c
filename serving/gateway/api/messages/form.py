"""Wire form of /v1/messages: Anthropic's message, streamed as content blocks.

    message_start (content_block_start [ping] content_block_delta* content_block_stop)* message_delta message_stop

The common event, more text of the open block, is a join of three byte strings as in OpenAI's streams.
"""

import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import msgspec

from hardware.nesting import parse_json
from serving.gateway.api.choice import Visible
from serving.gateway.api.forms.form import Answering, Collected, WireForm
from serving.gateway.api.http.errors import ErrorReply, anthropic_error
from serving.gateway.api.tools.reader import CallPart, Part, ReasoningPart
from serving.gateway.api.usage import cache_use, masked_use

Json = dict[str, Any]
_encode = msgspec.json.Encoder().encode


def _event(payload: dict[str, Any]) -> bytes:
    name: str = payload["type"]
    return b"event: " + name.encode() + b"\ndata: " + _encode(payload) + b"\n\n"


_PING = _event({"type": "ping"})
_NOT_OF_IDS = re.compile(r"[^a-zA-Z0-9_-]")
_MARK = "\N{OBJECT REPLACEMENT CHARACTER}"
_DELTAS = {
    "text": ("text_delta", "text"),
    "thinking": ("thinking_delta", "thinking"),
    "tool_use": ("input_json_delta", "partial_json"),
}
"""By kind of block: its delta's type, and the field that grows."""


class MessageEvents:
    """Events of one message; an `EventEncoder`."""

    comments = False

    def __init__(self, answering: Answering, edits: Json | None = None) -> None:
        self._answering = answering
        self._edits = _edits(edits)
        self._end = Visible()
        self._begun = False
        self._block = -1
        """Index of the latest content block."""
        self._kind = ""
        """Kind of the open block; empty while none is open."""
        self._before, self._after = b"", b""
        """Text before and after a delta of the open block."""

    def batch(self, outputs: Sequence[tuple[int, Visible]]) -> bytes:
        """All events of one batch of updates; empty if there is no visible output."""
        if len(outputs) == 1 and self._kind == "text":  # by far the most common
            out = outputs[0][1]
            parts = out.parts
            if out.finish is None and len(parts) == 1 and type(text := parts[0]) is str:
                return self._before + _encode(text) + self._after
        events = [] if self._begun else [self._opening()]
        for _, out in outputs:  # of the only choice
            for part in out.parts:
                events += self._part(part)
            if out.finish is not None:
                self._end = out
                events += self._close_block()
        return b"".join(events)

    def silence(self) -> bytes:
        """A ping event, which keeps the stream alive."""
        return _PING

    def closing(self, extra: Mapping[str, Any]) -> bytes:
        """Stop reason, usage and end mark."""
        delta = _stop(self._answering, self._end)
        last = {"type": "message_delta", "delta": delta, "usage": _usage(self._answering), **self._edits, **extra}
        return _event(last) + _event({"type": "message_stop"})

    def failure(self, reply: ErrorReply) -> bytes:
        """The error event, the last of the stream."""
        return b"event: error\ndata: " + anthropic_error(reply).body() + b"\n\n"

    def _opening(self) -> bytes:
        self._begun = True
        nothing = {"stop_reason": None, "stop_sequence": None}
        return _event({"type": "message_start", "message": _message(self._answering, [], nothing)})

    def _part(self, part: Part) -> list[bytes]:
        """Events of a piece of output: in the open block, or in a new one."""
        if isinstance(part, str):
            return [*self._open("text", {"type": "text", "text": ""}), self._before + _encode(part) + self._after]
        if isinstance(part, ReasoningPart):
            opened = self._open("thinking", {"type": "thinking", "thinking": "", "signature": ""})
            return [*opened, self._before + _encode(part.text) + self._after]
        if part.name is not None:
            block = {"type": "tool_use", "id": _tool_use_id(part.id or ""), "name": part.name, "input": {}}
            return self._open("tool_use", block, new_block=True)
        return [self._before + _encode(part.arguments) + self._after]

    def _open(self, kind: str, block: dict[str, Any], *, new_block: bool = False) -> list[bytes]:
        """Open a block, unless it is open already."""
        if self._kind == kind and not new_block:
            return []
        events = self._close_block()
        self._block += 1
        self._kind = kind
        name, field = _DELTAS[kind]
        whole = _event({"type": "content_block_delta", "index": self._block, "delta": {"type": name, field: _MARK}})
        before, after = whole.split(_MARK.encode())
        self._before, self._after = before[:-1], after[1:]  # without the quotes, which the encoded text includes
        events.append(_event({"type": "content_block_start", "index": self._block, "content_block": block}))
        return [*events, _PING] if self._block == 0 else events

    def _close_block(self) -> list[bytes]:
        if not self._kind:
            return []
        events = []
        if self._kind == "thinking":
            delta = {"type": "signature_delta", "signature": ""}
            events.append(_event({"type": "content_block_delta", "index": self._block, "delta": delta}))
        self._kind = ""
        return [*events, _event({"type": "content_block_stop", "index": self._block})]


class MessageWhole:
    """One message; a `WholeEncoder`."""

    short = True

    def __init__(self, answering: Answering, edits: Json | None = None) -> None:
        self._answering = answering
        self._edits = _edits(edits)
        self._collected = Collected()

    def add(self, index: int, out: Visible) -> None:
        """Add the visible output of one update."""
        self._collected.add(out)

    def body(self, extra: Mapping[str, Any]) -> bytes:
        content = _content(self._collected)
        stop = _stop(self._answering, self._collected.end)
        if stop["stop_reason"] == "tool_use" and not any(block["type"] == "tool_use" for block in content):
            stop["stop_reason"] = "end_turn"
        return _encode({**_message(self._answering, content, stop), **self._edits, **extra})


def _content(collected: Collected) -> list[dict[str, Any]]:
    """Blocks in the order of the output. A call with incomplete arguments gets none."""
    blocks: list[dict[str, Any]] = []
    calls = iter(collected.calls)
    for part in collected.parts:
        last = blocks[-1] if blocks else {}
        if isinstance(part, CallPart):
            call = next(calls) if part.name is not None else None
            if call is not None and (arguments := _input(call.arguments)) is not None:
                blocks.append({"type": "tool_use", "id": _tool_use_id(call.id), "name": call.name, "input": arguments})
        elif isinstance(part, ReasoningPart):
            if last.get("type") != "thinking":
                blocks.append(last := {"type": "thinking", "thinking": "", "signature": ""})
            last["thinking"] += part.text
        else:
            if last.get("type") != "text":
                blocks.append(last := {"type": "text", "text": ""})
            last["text"] += part
    return blocks


def _input(arguments: str) -> dict[str, Any] | None:
    """A call's arguments; None if cut off or not an object, because an agent would run the tool without arguments."""
    try:
        value = parse_json(arguments)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _tool_use_id(own_id: str) -> str:
    """A call's id in Anthropic's format, from the model's or this server's id."""
    return f"toolu_{_NOT_OF_IDS.sub('_', own_id.removeprefix('call_'))}"


def _message(answering: Answering, content: list[dict[str, Any]], stop: Mapping[str, Any]) -> dict[str, Any]:
    order = answering.order
    head = {"id": order.response_id, "type": "message", "role": "assistant", "model": order.model}
    return {**head, "content": content, **stop, "usage": _usage(answering)}


def _stop(answering: Answering, end: Visible) -> dict[str, Any]:
    """Stop reason of the message. The output may have been cut at the model's own limit before `max_tokens`."""
    if end.finish != "length":
        sequence = end.stop_reason if isinstance(end.stop_reason, str) else None
        if end.finish in ("tool_calls", "function_call"):
            return {"stop_reason": "tool_use", "stop_sequence": None}
        return {"stop_reason": "end_turn" if sequence is None else "stop_sequence", "stop_sequence": sequence}
    order = answering.order
    whole = order.max_tokens is None or order.job.sequences[0].sampling.max_tokens >= order.max_tokens
    return {"stop_reason": "max_tokens" if whole else "model_context_window_exceeded", "stop_sequence": None}


def _usage(answering: Answering) -> Json:
    """Tokens so far. Anthropic counts the prompt in disjoint parts: read from the cache, added to it, and neither."""
    order = answering.order
    cached = cache_use(order, answering.choices).cached_tokens
    written = order.hints.written(cached) if order.hints is not None else {}
    created = sum(written.values())
    by_ttl = {f"ephemeral_{ttl}_input_tokens": written.get(ttl, 0) for ttl in ("5m", "1h")}
    return {
        "input_tokens": sum(map(len, order.prompts)) - cached - created,
        "cache_creation_input_tokens": created,
        **({"cache_creation": by_ttl} if written else {}),
        "cache_read_input_tokens": cached,
        "output_tokens": sum(choice.completion_tokens for choice in answering.choices),
        **masked_use(answering.choices),
    }


def _edits(edits: Json | None) -> Json:
    return {} if edits is None else {"context_management": {"applied_edits": [edits] if edits else []}}


def messages_form(edits: Json | None) -> WireForm:
    """The form of one request.

    Args:
        edits: the applied edit of its conversation; empty = none was triggered, None = it wants none.
    """
    return (
        MESSAGES if edits is None else WireForm(partial(MessageEvents, edits=edits), partial(MessageWhole, edits=edits))
    )


MESSAGES = WireForm(MessageEvents, MessageWhole)
