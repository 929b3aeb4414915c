"""Wire form of /v1/completions."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from serving.gateway.api.choice import LogprobEntry, Visible
from serving.gateway.api.forms.chunk_stream import ChunkStream
from serving.gateway.api.forms.form import Answering, WireForm
from serving.gateway.api.forms.whole import Collected, WholeAnswer
from serving.gateway.api.logprob_wire import completion_logprobs


class CompletionChunks:
    """Choices of a completion's chunks: texts, the finish reason with the last; a `ChunkShape`."""

    name = "text_completion"
    ends_apart = False

    def __init__(self, answering: Answering) -> None:
        self._answering = answering

    def opening(self, index: int) -> None:
        """No chunk."""

    def choice(self, index: int, out: Visible) -> dict[str, Any]:
        """The update's text."""
        logprobs = _logprobs(self._answering, out.logprobs) if out.logprobs or not out.finish else None
        return {"index": index, "text": out.text, "logprobs": logprobs}


class CompletionWhole:
    """Choices of a completion response; a `WholeShape`."""

    name = "text_completion"

    def __init__(self, answering: Answering) -> None:
        self._answering = answering

    def choice(self, index: int, collected: Collected) -> dict[str, Any]:
        """The text."""
        return {
            "index": index,
            "text": collected.text,
            "logprobs": _logprobs(self._answering, collected.logprobs),
        }

    def placed(
        self, choices: list[dict[str, Any]], prompt_facts: Sequence[Mapping[str, Any]]
    ) -> tuple[list[dict[str, Any]], Mapping[str, Any]]:
        """Return the choices with their prompts' data in them."""
        return [{**choice, **facts} for choice, facts in zip(choices, prompt_facts, strict=True)], {}


def _logprobs(answering: Answering, entries: Sequence[LogprobEntry]) -> dict[str, Any] | None:
    options = answering.order.options
    if options.logprobs is None:
        return None
    return completion_logprobs(entries, options.logprobs, answering.tokenizer, as_ids=options.tokens_as_ids)


COMPLETIONS = WireForm(
    partial(ChunkStream, shape=CompletionChunks),
    partial(WholeAnswer, shape=CompletionWhole),
)
