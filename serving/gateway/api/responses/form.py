"""Wire form of /v1/responses: the response object, streamed as events that number themselves."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import msgspec

from serving.gateway.api.choice import Visible
from serving.gateway.api.forms.form import MANY_LOGPROBS, Answering, WireForm
from serving.gateway.api.http.errors import ErrorReply
from serving.gateway.api.responses.output_items import CALLED_WITH, OutputItem, OutputItems, text_logprobs
from serving.gateway.api.responses.tools import FlatNames
from serving.gateway.api.translate import GenerationOrder
from serving.gateway.api.usage import cache_use, masked_use

# The response object of the Responses API: the request's parameters, and its output.

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ResponseFrame:
    """Parts of a response that depend only on the request.

    Args:
        fields: of the response object that repeat the request.
        sealed: whether reasoning is repeated as `encrypted_content`.
        whole: called with the finished response object, before it is sent to the client.
        names: names of the request's tools.
        compacts: whether the output is one item, a summary.
    """

    fields: Mapping[str, Any]
    sealed: bool
    whole: Callable[[Json], None]
    names: FlatNames = field(default_factory=FlatNames)
    compacts: bool = False

    def items(self, order: GenerationOrder) -> OutputItems:
        """The items of its response, none yet."""
        stem, repeats = item_stem(order.response_id), bool(self.fields.get("background"))
        return OutputItems(stem, sealed=self.sealed, names=self.names, compacts=self.compacts, repeats=repeats)


def running_response(answering: Answering, frame: ResponseFrame) -> Json:
    """The object of a response in progress."""
    return _response(answering, frame, "in_progress", [])


def failed_response(answering: Answering, frame: ResponseFrame, output: list[Json], reply: ErrorReply) -> Json:
    """The object of a response that has failed."""
    code = "rate_limit_exceeded" if reply.status == 429 else "server_error"  # OpenAI has no better code
    after = reply.headers.get("retry-after")  # in words, because Codex reads the time to wait from them
    error = {"code": code, "message": f"{reply.message}; try again in {after} s" if after else reply.message}
    return {**_response(answering, frame, "failed", output), "error": error}


def ended_response(answering: Answering, frame: ResponseFrame, output: list[Json], end: Visible) -> Json:
    """The object of a finished response, with its usage.

    A response without a limit of its own that reaches the end of the context is reported as failed: agents that set no
    limit then shorten the conversation and continue.
    """
    counted = _usage(answering)
    usage = {"usage": counted}
    if end.finish != "length" or frame.compacts:  # a summary may be as long as its limit
        return {**_response(answering, frame, "completed", output), **usage}
    order = answering.order
    if order.max_tokens is None and counted["total_tokens"] >= order.context_tokens:
        words = f"the output has reached the end of the model's context of {order.context_tokens} tokens"
        error = {"code": "context_length_exceeded", "message": words}
        return {**_response(answering, frame, "failed", output), "error": error, **usage}
    details = {"reason": "max_output_tokens"}
    return {**_response(answering, frame, "incomplete", output), "incomplete_details": details, **usage}


def item_status(end: Visible) -> str:
    """Status of a response's last item."""
    return "incomplete" if end.finish == "length" else "completed"


def _response(answering: Answering, frame: ResponseFrame, status: str, output: list[Json]) -> Json:
    order = answering.order
    sampling = order.job.sequences[0].sampling
    return {
        "id": order.response_id,
        "object": "response",
        "created_at": order.created,
        "status": status,
        "error": None,
        "incomplete_details": None,
        "model": order.model,
        "output": output,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        **frame.fields,
    }


def _usage(answering: Answering) -> Json:
    """Tokens so far. Tokens written to the cache are those that the request claims."""
    order = answering.order
    prompt = sum(map(len, order.prompts))
    completion = sum(choice.completion_tokens for choice in answering.choices)
    cached = cache_use(order, answering.choices).cached_tokens
    written = 0 if order.hints is None else sum(order.hints.written(cached).values())
    return {
        "input_tokens": prompt,
        "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": written},
        "output_tokens": completion,
        "output_tokens_details": {"reasoning_tokens": sum(choice.reasoning_tokens for choice in answering.choices)},
        "total_tokens": prompt + completion,
        **masked_use(answering.choices),
    }


# Wire form of /v1/responses: OpenAI's response object, streamed as numbered events.
#
#     response.created response.in_progress
#     (response.output_item.added
#         [response.content_part.added] (response.*.delta)* response.*.done [response.content_part.done]
#      response.output_item.done)*
#     response.completed | response.incomplete | response.failed
#
# The common event, more text of the open message, is a join of five byte strings.

_encode = msgspec.json.Encoder().encode
_NUMBER = -1_234_567_890
"""Placeholder for an event's number, where the encoded event is split."""
_MARK = "\N{OBJECT REPLACEMENT CHARACTER}"
_TEXT = {
    "message": "output_text",
    "reasoning": "reasoning_text",
    "function_call": "function_call_arguments",
    "custom_tool_call": "custom_tool_call_input",
}
"""Middle of the names of an item's deltas; an item of another kind has none."""


class ResponseEvents:
    """Events of one response; an `EventEncoder`."""

    comments = False

    def __init__(self, answering: Answering, frame: ResponseFrame) -> None:
        self._answering = answering
        self._frame = frame
        self._plain = answering.order.options.logprobs is None
        self._items = frame.items(answering.order)
        self._open: OutputItem | None = None
        self._cut = (b"", b"", b"")
        """Text around the number and the text of a delta of the open item."""
        self._number = 0
        self._end = Visible()
        self._begun = self._accepted = False

    @property
    def number(self) -> int:
        """Number of the next event."""
        return self._number

    @number.setter
    def number(self, number: int) -> None:
        self._number = number

    def accepted(self) -> bytes:
        """The first events of a background response, which waits for its turn."""
        self._accepted = True
        response = _response(self._answering, self._frame, "queued", [])
        return b"".join(self._event(f"response.{name}", response=response) for name in ("created", "queued"))

    def cancelled(self) -> bytes:
        """The last event of a background response that was cancelled. OpenAI has no event for it alone."""
        response = _response(self._answering, self._frame, "cancelled", self._items.output("incomplete"))
        return self._event("response.incomplete", response=response)

    def batch(self, outputs: Sequence[tuple[int, Visible]]) -> bytes:
        """All events of one batch of updates; empty if there is no visible output."""
        if len(outputs) == 1 and self._plain and self._open is not None and self._open.kind == "message":
            out = outputs[0][1]
            if out.finish is None and len(out.parts) == 1 and type(text := out.parts[0]) is str:
                self._open.pieces.append(text)  # by far the most common
                return self._delta(text)
        events = [] if self._begun else self._opening()
        for _, out in outputs:  # of the only choice
            self._take(out, events)
            if out.finish is not None:
                self._end = out
                self._finish(events)
                self._close(events, item_status(out))
        return b"".join(events)

    def silence(self) -> bytes:
        """An event: clients abandon a stream that has only comments."""
        if not self._begun and not self._accepted:
            return b"".join(self._opening())
        status = "in_progress" if self._begun else "queued"
        return self._event(f"response.{status}", response=_response(self._answering, self._frame, status, []))

    def closing(self, extra: Mapping[str, Any]) -> bytes:
        """The final event, with the whole response."""
        output = self._items.output(item_status(self._end))
        response = {**ended_response(self._answering, self._frame, output, self._end), **extra}
        self._frame.whole(response)
        return self._event(f"response.{response['status']}", response=response)

    def failure(self, reply: ErrorReply) -> bytes:
        """The response so far, with its error; the last event."""
        output = self._items.output("incomplete")
        response = failed_response(self._answering, self._frame, output, reply)
        return self._event("response.failed", response=response)

    def _opening(self) -> list[bytes]:
        self._begun = True
        response = running_response(self._answering, self._frame)
        names = ("in_progress",) if self._accepted else ("created", "in_progress")
        return [self._event(f"response.{name}", response=response) for name in names]

    def _take(self, out: Visible, events: list[bytes]) -> None:
        extra = text_logprobs(self._answering, out)
        for part in self._items.wanted(out.parts):
            item, piece = self._items.take(part)
            if item is not self._open:
                self._close(events, "completed")
                self._begin(item, events)
            if piece and item.kind == "message" and extra:
                item.logprobs += extra
                events.append(self._event(self._name("delta"), **self._at(item), delta=piece, logprobs=extra))
                extra = []
            elif piece and item.kind in _TEXT:
                events.append(self._delta(piece))
        if extra and self._open is not None and self._open.kind == "message":  # of withheld text
            self._open.logprobs += extra

    def _finish(self, events: list[bytes]) -> None:
        self._items.finish()
        if self._open is None and len(self._items.items) == 1:  # an empty summary
            self._begin(self._items.items[0], events)

    def _begin(self, item: OutputItem, events: list[bytes]) -> None:
        self._open = item
        shown = self._items.shown(item, "in_progress")
        if item.kind in CALLED_WITH:
            shown[CALLED_WITH[item.kind]] = ""
        events.append(self._event("response.output_item.added", output_index=item.place, item=shown))
        if item.kind not in _TEXT:
            return
        if item.kind not in CALLED_WITH:
            part = {**item.part(), "text": "", **({"logprobs": []} if item.kind == "message" else {})}
            events.append(self._event("response.content_part.added", **self._at(item), part=part))
        more: dict[str, Any] = {"logprobs": []} if item.kind == "message" else {}
        number, self._number = self._number, _NUMBER
        whole = self._event(self._name("delta"), **self._at(item), **more, delta=_MARK)
        self._number = number
        before, rest = whole.split(str(_NUMBER).encode())
        between, after = rest.split(b'"' + _MARK.encode() + b'"')
        self._cut = before, between, after

    def _close(self, events: list[bytes], status: str) -> None:
        item, self._open = self._open, None
        if item is None:
            return
        name = f"response.{_TEXT.get(item.kind)}.done"
        if item.kind in CALLED_WITH:
            named = {"name": item.tool[1]} if item.kind == "function_call" else {}
            events.append(self._event(name, **self._at(item), **named, **{CALLED_WITH[item.kind]: item.text}))
        elif item.kind in _TEXT:
            more = {"logprobs": item.logprobs} if item.kind == "message" else {}
            events.append(self._event(name, **self._at(item), text=item.text, **more))
            events.append(self._event("response.content_part.done", **self._at(item), part=item.part()))
        shown = self._items.shown(item, status)
        events.append(self._event("response.output_item.done", output_index=item.place, item=shown))

    def _name(self, end: str) -> str:
        assert self._open is not None, "an item is open"
        return f"response.{_TEXT[self._open.kind]}.{end}"

    def _at(self, item: OutputItem) -> dict[str, Any]:
        place: dict[str, Any] = {"item_id": item.id, "output_index": item.place}
        return place if item.kind in CALLED_WITH else {**place, "content_index": 0}

    def _delta(self, text: str) -> bytes:
        before, between, after = self._cut
        number = self._number
        self._number = number + 1
        return b"".join((before, b"%d" % number, between, _encode(text), after))

    def _event(self, name: str, /, **fields: object) -> bytes:
        payload = {"type": name, "sequence_number": self._number, **fields}
        self._number += 1
        return b"event: " + name.encode() + b"\ndata: " + _encode(payload) + b"\n\n"


class ResponseWhole:
    """One response; a `WholeEncoder`."""

    def __init__(self, answering: Answering, frame: ResponseFrame) -> None:
        self._answering = answering
        self._frame = frame
        self._items = frame.items(answering.order)
        self._end = Visible()

    def add(self, index: int, out: Visible) -> None:
        """Add the visible output of one update."""
        extra = text_logprobs(self._answering, out)
        for part in self._items.wanted(out.parts):
            self._items.take(part)
        if extra and self._items.items and self._items.items[-1].kind == "message":
            self._items.items[-1].logprobs += extra
        if out.finish is not None:
            self._end = out
            self._items.finish()

    @property
    def short(self) -> bool:
        """Whether encoding the body takes negligible time."""
        return sum(len(item.logprobs) for item in self._items.items) < MANY_LOGPROBS

    def body(self, extra: Mapping[str, Any]) -> bytes:
        """The response object."""
        output = self._items.output(item_status(self._end))
        response = {**ended_response(self._answering, self._frame, output, self._end), **extra}
        self._frame.whole(response)
        return _encode(response)


class CompactionWhole(ResponseWhole):
    """The answer to `/v1/responses/compact`.

    Args:
        kept: items that stay in front of the summary.
    """

    def __init__(self, answering: Answering, frame: ResponseFrame, kept: Sequence[Json]) -> None:
        super().__init__(answering, frame)
        self._kept = kept

    def body(self, extra: Mapping[str, Any]) -> bytes:
        """The compaction object."""
        order = self._answering.order
        compaction = {
            "id": order.response_id,
            "object": "response.compaction",
            "created_at": order.created,
            "output": [*self._kept, *self._items.output("completed")],
            "usage": _usage(self._answering),
        }
        return _encode({**compaction, **extra})


def item_stem(response_id: str) -> str:
    """Stem of the ids of a response's items: its own id without the prefix."""
    return response_id.partition("_")[2]


def responses_form(frame: ResponseFrame) -> WireForm:
    return WireForm(partial(ResponseEvents, frame=frame), partial(ResponseWhole, frame=frame))


def compaction_form(frame: ResponseFrame, kept: Sequence[Json]) -> WireForm:
    """The form of `/v1/responses/compact`, which does not stream."""
    return WireForm(partial(ResponseEvents, frame=frame), partial(CompactionWhole, frame=frame, kept=kept))
