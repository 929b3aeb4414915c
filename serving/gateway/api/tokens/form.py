"""Wire form of /inference/v1/generate: tokens of each choice, without any text."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from serving.gateway.api.choice import LogprobEntry, Visible
from serving.gateway.api.forms.chunk_stream import DONE, KEEPALIVE
from serving.gateway.api.forms.form import MANY_LOGPROBS, Answering, Collected, WireForm, event
from serving.gateway.api.http.errors import ErrorReply
from serving.gateway.api.logprob_wire import chat_logprobs, prompt_logprobs
from serving.gateway.api.usage import usage

_encode = msgspec.json.Encoder().encode


class TokenEvents:
    """Events of tokens; an `EventEncoder`."""

    comments = True

    def __init__(self, answering: Answering) -> None:
        self._answering = answering

    def batch(self, outputs: Sequence[tuple[int, Visible]]) -> bytes:
        """All events of one batch of updates; empty when there are no new tokens."""
        shown = [(index, out) for index, out in outputs if out.tokens or out.finish is not None]
        return b"".join(event(_encode({**self._head(), "choices": [self._choice(index, out)]})) for index, out in shown)

    def silence(self) -> bytes:
        """A comment."""
        return KEEPALIVE

    def closing(self, told: Mapping[str, Any]) -> bytes:
        """Usage, if requested, and the end mark."""
        order = self._answering.order
        if not order.include_usage:
            return DONE
        whole = {**self._head(), "choices": [], "usage": usage(order, self._answering.choices), **told}
        return event(_encode(whole)) + DONE

    def failure(self, reply: ErrorReply) -> bytes:
        """The error object and the end mark."""
        return event(reply.body()) + DONE

    def _head(self) -> dict[str, Any]:
        return {"request_id": self._answering.order.response_id}

    def _choice(self, index: int, out: Visible) -> dict[str, Any]:
        return token_choice(self._answering, index, out.tokens, out.logprobs, out)


class TokenWhole:
    """All tokens; a `WholeEncoder`."""

    def __init__(self, answering: Answering) -> None:
        self._answering = answering
        self._collected = [Collected() for _ in answering.choices]

    def add(self, index: int, out: Visible) -> None:
        """Add the visible output of one update."""
        self._collected[index].add(out)

    @property
    def short(self) -> bool:
        """Whether encoding the body takes negligible time."""
        many = sum(len(one.logprobs) for one in self._collected) >= MANY_LOGPROBS
        return self._answering.order.options.prompt_logprobs is None and not many

    def body(self, told: Mapping[str, Any]) -> bytes:
        """The response body."""
        answering = self._answering
        order, choices = answering.order, answering.choices
        shown = [
            token_choice(answering, index, one.tokens, one.logprobs, one.end)
            for index, one in enumerate(self._collected)
        ]
        top = order.options.prompt_logprobs
        facts = None
        if top is not None:
            facts = prompt_logprobs(order.prompts[0], choices[0].prompt_logprobs, top, answering.tokenizer)
        whole = {"request_id": order.response_id, "choices": shown, "prompt_logprobs": facts}
        return _encode({**whole, "usage": usage(order, choices), **told})


def token_choice(
    answering: Answering, index: int, tokens: Sequence[int], entries: Sequence[LogprobEntry], end: Visible
) -> dict[str, Any]:
    """One choice, or an increment of it."""
    options = answering.order.options
    told = None
    if options.logprobs is not None:
        told = chat_logprobs(entries, options.logprobs, answering.tokenizer, as_ids=True)
    return {
        "index": index,
        "token_ids": list(tokens),
        "logprobs": told,
        "finish_reason": end.finish,
        "stop_reason": end.stop_reason,
    }


TOKENS = WireForm(TokenEvents, TokenWhole)
