"""Wire form of /v1/chat/completions."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from serving.gateway.api.choice import LogprobEntry, Visible
from serving.gateway.api.forms.chunk_stream import ChunkStream
from serving.gateway.api.forms.form import Answering, WireForm
from serving.gateway.api.forms.whole import Collected, WholeAnswer
from serving.gateway.api.logprob_wire import chat_logprobs


class ChatChunks:
    """Choices of a chat's chunks: the assistant's role first, an empty delta with the end; a `ChunkShape`."""

    name = "chat.completion.chunk"
    ends_apart = True

    def __init__(self, answering: Answering) -> None:
        self._answering = answering

    def opening(self, index: int) -> dict[str, Any]:
        """The assistant's role."""
        delta = {"role": "assistant", "content": ""}
        return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}

    def choice(self, index: int, out: Visible) -> dict[str, Any]:
        """A message's delta."""
        text = out.text
        delta = {"content": text} if text or not out.finish else {}
        shows = out.logprobs or not out.finish
        return {"index": index, "delta": delta, "logprobs": _logprobs(self._answering, out.logprobs) if shows else None}


class ChatWhole:
    """Choices of a chat's answer; a `WholeShape`."""

    name = "chat.completion"

    def __init__(self, answering: Answering) -> None:
        self._answering = answering

    def choice(self, index: int, collected: Collected) -> dict[str, Any]:
        """The assistant's message."""
        message = {"role": "assistant", "content": collected.text, "refusal": None}
        return {"index": index, "message": message, "logprobs": _logprobs(self._answering, collected.logprobs)}

    def placed(
        self, choices: list[dict[str, Any]], prompt_facts: Sequence[Mapping[str, Any]]
    ) -> tuple[list[dict[str, Any]], Mapping[str, Any]]:
        """Put what is known about the one prompt beside the choices."""
        return choices, prompt_facts[0]


def _logprobs(answering: Answering, entries: Sequence[LogprobEntry]) -> dict[str, Any] | None:
    options = answering.order.options
    if options.logprobs is None:
        return None
    return chat_logprobs(entries, options.logprobs, answering.tokenizer, as_ids=options.tokens_as_ids)


CHAT = WireForm(partial(ChunkStream, shape=ChatChunks), partial(WholeAnswer, shape=ChatWhole))
