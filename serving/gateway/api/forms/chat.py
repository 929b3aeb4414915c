"""Wire form of /v1/chat/completions."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from serving.gateway.api.choice import LogprobEntry, Visible
from serving.gateway.api.forms.chunk_stream import ChunkStream
from serving.gateway.api.forms.form import Answering, Collected, WholeAnswer, WholeCall, WireForm
from serving.gateway.api.logprob_wire import chat_logprobs, completion_logprobs
from serving.gateway.api.tools.reader import CallPart, Part, ReasoningPart


class ChatChunks:
    """Choices of a chat's chunks: the assistant's role first, an empty delta last; a `ChunkShape`."""

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
        delta = _delta(self._answering, out)
        shows = out.logprobs or not out.finish
        return {"index": index, "delta": delta, "logprobs": _logprobs(self._answering, out.logprobs) if shows else None}


class ChatWhole:
    """Choices of a chat response; a `WholeShape`."""

    name = "chat.completion"

    def __init__(self, answering: Answering) -> None:
        self._answering = answering

    def choice(self, index: int, collected: Collected) -> dict[str, Any]:
        """The assistant's message."""
        message = _message(self._answering, collected)
        return {"index": index, "message": message, "logprobs": _logprobs(self._answering, collected.logprobs)}

    def placed(
        self, choices: list[dict[str, Any]], prompt_facts: Sequence[Mapping[str, Any]]
    ) -> tuple[list[dict[str, Any]], Mapping[str, Any]]:
        """Return the prompt's data next to the choices."""
        return choices, prompt_facts[0]


def _delta(answering: Answering, out: Visible) -> dict[str, Any]:
    """Increment of a message. Reasoning is sent under both names that clients know."""
    delta: dict[str, Any] = {}
    text = out.text
    if any(isinstance(part, ReasoningPart) for part in out.parts):
        thought = "".join(part.text for part in out.parts if isinstance(part, ReasoningPart))
        delta |= {"reasoning_content": thought, "reasoning": thought}
    calls = call_deltas(out.parts)
    if calls:
        delta |= {"function_call": calls[0]["function"]} if _legacy(answering) else {"tool_calls": calls}
    if text or not (delta or out.finish):
        delta["content"] = text
    return delta


def _message(answering: Answering, collected: Collected) -> dict[str, Any]:
    text, thought, calls = collected.text, collected.thought, collected.calls
    message: dict[str, Any] = {"role": "assistant", "content": text if text or not calls else None, "refusal": None}
    if thought:
        message |= {"reasoning_content": thought, "reasoning": thought}
    if calls and _legacy(answering):
        message["function_call"] = {"name": calls[0].name, "arguments": calls[0].arguments}
    elif calls:
        message["tool_calls"] = [_whole_call(call) for call in calls]
    return message


def _whole_call(call: WholeCall) -> dict[str, Any]:
    if call.custom:
        return {"id": call.id, "type": "custom", "custom": {"name": call.name, "input": call.arguments}}
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def call_deltas(parts: Sequence[Part]) -> list[dict[str, Any]]:
    """One increment per call: index, id and name with its first piece, then arguments, or a custom tool's input."""
    deltas: dict[int, dict[str, Any]] = {}
    for part in parts:
        if isinstance(part, CallPart):
            delta = deltas.setdefault(part.index, {"index": part.index})
            kind, grows = ("custom", "input") if part.custom else ("function", "arguments")
            if part.name is not None:
                delta |= {"id": part.id, "type": kind, kind: {"name": part.name, grows: ""}}
            inner = delta.setdefault(kind, {grows: ""})
            inner[grows] += part.arguments
    return list(deltas.values())


def _legacy(answering: Answering) -> bool:
    reading = answering.order.options.reading
    return reading is not None and reading.legacy


def _logprobs(answering: Answering, entries: Sequence[LogprobEntry]) -> dict[str, Any] | None:
    options = answering.order.options
    if options.logprobs is None:
        return None
    return chat_logprobs(entries, options.logprobs, answering.tokenizer, as_ids=options.tokens_as_ids)


CHAT = WireForm(partial(ChunkStream, shape=ChatChunks), partial(WholeAnswer, shape=ChatWhole))


# Wire form of /v1/completions.


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
        logprobs = _completions_logprobs(self._answering, out.logprobs) if out.logprobs or not out.finish else None
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
            "logprobs": _completions_logprobs(self._answering, collected.logprobs),
        }

    def placed(
        self, choices: list[dict[str, Any]], prompt_facts: Sequence[Mapping[str, Any]]
    ) -> tuple[list[dict[str, Any]], Mapping[str, Any]]:
        """Return the choices with their prompts' data in them."""
        return [{**choice, **facts} for choice, facts in zip(choices, prompt_facts, strict=True)], {}


def _completions_logprobs(answering: Answering, entries: Sequence[LogprobEntry]) -> dict[str, Any] | None:
    options = answering.order.options
    if options.logprobs is None:
        return None
    return completion_logprobs(entries, options.logprobs, answering.tokenizer, as_ids=options.tokens_as_ids)


COMPLETIONS = WireForm(
    partial(ChunkStream, shape=CompletionChunks),
    partial(WholeAnswer, shape=CompletionWhole),
)
