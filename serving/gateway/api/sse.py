"""Server-sent events of a stream, built from parts that do not change so that a token costs one JSON string.

Per choice the bytes before and after the text are made once; the common event (some text, nothing else) is a join of
three byte strings. Everything else (log-probabilities, token ids, running usage, the end) goes through the general
encoder.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from serving.gateway.api.choice import ChoiceOutput, Visible
from serving.gateway.api.logprob_wire import chat_logprobs, completion_logprobs
from serving.gateway.api.timing import Timing
from serving.gateway.api.tokenizer import Tokenizer
from serving.gateway.api.translate import GenerationOrder, OutputForm
from serving.gateway.api.usage import times, usage

DONE = b"data: [DONE]\n\n"
KEEPALIVE = b": keep-alive\n\n"

_encode = msgspec.json.Encoder().encode


def event(payload: bytes) -> bytes:
    """One event around a JSON text."""
    return b"data: " + payload + b"\n\n"


class StreamEncoder:
    """Events of one response."""

    def __init__(
        self,
        order: GenerationOrder,
        choices: Sequence[ChoiceOutput],
        tokenizer: Tokenizer,
        timing: Timing | None = None,
    ) -> None:
        self._timing = timing
        self._order = order
        self._choices = choices
        self._tokenizer = tokenizer
        self._chat = order.kind is OutputForm.CHAT
        options = order.options
        self._plain = options.logprobs is None and not options.token_ids and not order.continuous_usage
        name = "chat.completion.chunk" if self._chat else "text_completion"
        self._head = order.head(name)
        self._sent: dict[int, int] = {}
        """Tokens of the choices that have begun, as far as they were sent; where a running usage is wanted."""
        self._parts = [self._cut_at_text(choice.index) for choice in choices]

    def _cut_at_text(self, index: int) -> tuple[bytes, bytes]:
        """The plain event of a choice with an empty text, split where the text belongs."""
        whole = event(_encode(self._chunk(index, Visible(text="\N{OBJECT REPLACEMENT CHARACTER}"))))
        before, after = whole.split("\N{OBJECT REPLACEMENT CHARACTER}".encode())
        return before[:-1], after[1:]  # without the quotes, which come with the encoded text

    def batch(self, outputs: Sequence[tuple[int, Visible]]) -> bytes:
        """All events of one batch of updates; empty when nothing became visible."""
        if len(outputs) == 1:  # by far the most common
            index, out = outputs[0]
            if index in self._sent:
                return self.piece(index, out)
        parts = []
        for index, out in outputs:
            if index not in self._sent:
                parts.append(self.opening(index))
                self._sent[index] = 0
            parts.append(self.piece(index, out))
        return b"".join(parts)

    def opening(self, index: int) -> bytes:
        """First event of a choice: in chat the assistant's role, in completions nothing."""
        if not self._chat:
            return b""
        chunk = self._envelope([self._chat_choice(index, {"role": "assistant", "content": ""}, None)])
        if self._order.options.token_ids:
            chunk["prompt_token_ids"] = self._order.prompts[index // self._order.n]
        return event(_encode(chunk))

    def piece(self, index: int, out: Visible) -> bytes:
        """The event of one update, or nothing when nothing became visible."""
        if self._plain and out.finish is None:
            if not out.text:
                return b""
            before, after = self._parts[index]
            return before + _encode(out.text) + after
        self._sent[index] += len(out.tokens)
        if out.finish is None:
            return event(_encode(self._chunk(index, out))) if out.text or out.tokens or out.logprobs else b""
        if not self._chat:
            return event(_encode(self._chunk(index, out)))
        # Chat ends with an event of its own that has an empty delta; the last text goes before it.
        last = Visible(text=out.text, tokens=out.tokens, logprobs=out.logprobs)
        before_end = event(_encode(self._chunk(index, last))) if out.text or out.logprobs or self._shows(out) else b""
        return before_end + event(_encode(self._chunk(index, Visible(finish=out.finish, stop_reason=out.stop_reason))))

    def closing(self, told: Mapping[str, Any]) -> bytes:
        """Usage and times, when asked, and the end mark.

        Args:
            told: further keys of the chunk with the usage.
        """
        if not self._order.include_usage:
            return DONE
        chunk = {**self._head, "choices": [], "usage": usage(self._order, self._choices)}
        return event(_encode({**chunk, **times(self._timing, self._choices), **told})) + DONE

    def _shows(self, out: Visible) -> bool:
        return self._order.options.token_ids and bool(out.tokens)

    def _envelope(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        chunk = {**self._head, "choices": choices}
        if self._order.include_usage:
            running = self._order.continuous_usage
            chunk["usage"] = usage(self._order, self._choices, self._sent) if running else None
        return chunk

    def _chunk(self, index: int, out: Visible) -> dict[str, Any]:
        options = self._order.options
        encode = chat_logprobs if self._chat else completion_logprobs
        logprobs = None
        if options.logprobs is not None and (out.logprobs or not out.finish):
            logprobs = encode(out.logprobs, options.logprobs, self._tokenizer, as_ids=options.tokens_as_ids)
        if self._chat:
            delta = {"content": out.text} if out.text or not out.finish else {}
            choice = self._chat_choice(index, delta, logprobs)
        else:
            choice = {"index": index, "text": out.text, "logprobs": logprobs, "finish_reason": None}
        choice["finish_reason"] = out.finish
        if out.finish is not None:
            choice["stop_reason"] = out.stop_reason
        if options.token_ids:
            choice["token_ids"] = out.tokens
        return self._envelope([choice])

    def _chat_choice(self, index: int, delta: dict[str, Any], logprobs: dict[str, Any] | None) -> dict[str, Any]:
        return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": None}
