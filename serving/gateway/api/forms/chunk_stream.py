"""Streams of OpenAI's chunks, with constant parts encoded in advance so that a token costs one JSON string.

Per choice the bytes before and after the text are built once; the common event (only text) is a join of three byte
strings. All other events (log-probabilities, token ids, running usage, the end) use the general encoder. Chat and
completions differ only in the shape of a choice, which is a parameter.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from serving.gateway.api.choice import Visible
from serving.gateway.api.forms.form import Answering, event
from serving.gateway.api.hints.orders import answer_keys
from serving.gateway.api.http.errors import ErrorReply
from serving.gateway.api.usage import times, usage

DONE = b"data: [DONE]\n\n"
KEEPALIVE = b": keep-alive\n\n"

_encode = msgspec.json.Encoder().encode
_MARK = "\N{OBJECT REPLACEMENT CHARACTER}"


class ChunkShape(Protocol):
    """Shape of a chunk's choice."""

    name: str
    """The chunk's `object`."""
    ends_apart: bool
    """Whether the end is sent as a separate chunk, after the last output."""

    def opening(self, index: int) -> dict[str, Any] | None:
        """The choice of a chunk before its first output, or None."""
        ...

    def choice(self, index: int, out: Visible) -> dict[str, Any]:
        """The choice of a chunk with output, without its end."""
        ...


class ChunkStream:
    """Events of one response; an `EventEncoder`."""

    comments = True

    def __init__(self, answering: Answering, shape: Callable[[Answering], ChunkShape]) -> None:
        order = answering.order
        self._answering = answering
        self._order = order
        self._shape = shape(answering)
        options = order.options
        self._plain = options.logprobs is None and not options.token_ids and not order.continuous_usage
        self._head = order.head(self._shape.name)
        self._sent: dict[int, int] = {}
        """Number of sent tokens of each started choice; only if running usage is requested."""
        self._frames = [self._cut_at_text(choice.index) for choice in answering.choices]

    def _cut_at_text(self, index: int) -> tuple[bytes, bytes]:
        """The plain event of a choice with an empty text, split where the text belongs."""
        whole = event(_encode(self._chunk(index, Visible([_MARK]))))
        before, after = whole.split(_MARK.encode())
        return before[:-1], after[1:]  # without the quotes, which the encoded text includes

    def batch(self, outputs: Sequence[tuple[int, Visible]]) -> bytes:
        """All events of one batch of updates; empty if there is no visible output."""
        if len(outputs) == 1:  # by far the most common
            index, out = outputs[0]
            if index in self._sent:
                return self._piece(index, out)
        parts = []
        for index, out in outputs:
            if index not in self._sent:
                parts.append(self._opening(index))
                self._sent[index] = 0
            parts.append(self._piece(index, out))
        return b"".join(parts)

    def silence(self) -> bytes:
        """A comment line."""
        return KEEPALIVE

    def closing(self, extra: Mapping[str, Any]) -> bytes:
        """Usage and times, if requested, and the end mark."""
        if not self._order.include_usage:
            hints = answer_keys(self._order)
            return event(_encode({**self._head, "choices": [], **hints})) + DONE if hints else DONE
        choices = self._answering.choices
        chunk = {**self._head, "choices": [], "usage": usage(self._order, choices)}
        return event(_encode({**chunk, **times(self._answering.timing, choices), **extra})) + DONE

    def failure(self, reply: ErrorReply) -> bytes:
        """The error object and the end mark."""
        return event(reply.body()) + DONE

    def _opening(self, index: int) -> bytes:
        """First event of a choice: in chat the assistant's role, in completions empty."""
        if (choice := self._shape.opening(index)) is None:
            return b""
        chunk = self._envelope([choice])
        if self._order.options.token_ids:
            chunk["prompt_token_ids"] = self._order.prompts[index // self._order.n]
        return event(_encode(chunk))

    def _piece(self, index: int, out: Visible) -> bytes:
        """The event of one update; empty if there is no visible output."""
        if self._plain and out.finish is None:
            parts = out.parts
            if len(parts) == 1 and type(parts[0]) is str:  # by far the most common
                before, after = self._frames[index]
                return before + _encode(parts[0]) + after
            return event(_encode(self._chunk(index, out))) if parts else b""
        self._sent[index] += len(out.tokens)
        shows = bool(out.parts or out.logprobs)
        if out.finish is None:
            return event(_encode(self._chunk(index, out))) if shows or out.tokens else b""
        if not self._shape.ends_apart:
            return event(_encode(self._chunk(index, out)))
        last = Visible(out.parts, tokens=out.tokens, logprobs=out.logprobs)
        shows = shows or (self._order.options.token_ids and bool(out.tokens))
        before_end = event(_encode(self._chunk(index, last))) if shows else b""
        return before_end + event(_encode(self._chunk(index, Visible(finish=out.finish, stop_reason=out.stop_reason))))

    def _envelope(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        chunk = {**self._head, "choices": choices}
        if self._order.include_usage:
            running = self._order.continuous_usage
            chunk["usage"] = usage(self._order, self._answering.choices, self._sent) if running else None
        return chunk

    def _chunk(self, index: int, out: Visible) -> dict[str, Any]:
        choice = self._shape.choice(index, out)
        choice["finish_reason"] = out.finish
        if out.finish is not None:
            choice["stop_reason"] = out.stop_reason
        if self._order.options.token_ids:
            choice["token_ids"] = out.tokens
        return self._envelope([choice])
