"""The protocol of wire forms: converts visible output to the bytes of a response.

    run ──(index, Visible)──► events(...).batch ──► bytes of a stream
                         └──► whole(...).add ... body ──► bytes of one object

A `Visible` has parts (text, reasoning, calls); each form encodes them in its own way.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from serving.gateway.api.choice import ChoiceOutput, LogprobEntry, Visible
from serving.gateway.api.http.errors import ErrorReply
from serving.gateway.api.logprob_wire import prompt_logprobs
from serving.gateway.api.tokenizer import Tokenizer
from serving.gateway.api.tools.reader import CallPart, Part, ReasoningPart
from serving.gateway.api.translate import GenerationOrder
from serving.gateway.api.usage import Timing, times, usage


@dataclass(frozen=True, slots=True)
class Answering:
    """The request that an encoder responds to, and its choices.

    Args:
        timing: times to report to the client; None = none.
    """

    order: GenerationOrder
    choices: Sequence[ChoiceOutput]
    tokenizer: Tokenizer
    timing: Timing | None = None


class EventEncoder(Protocol):
    """Server-sent events of one streamed response."""

    comments: bool
    """Whether `silence` is a comment, not an event: it does not start a stream."""

    def batch(self, outputs: Sequence[tuple[int, Visible]]) -> bytes:
        """All events of one batch of updates; empty if there is no visible output."""
        ...

    def silence(self) -> bytes:
        """Bytes that keep an idle stream alive."""
        ...

    def closing(self, extra: Mapping[str, Any]) -> bytes:
        """The last events of a complete stream.

        Args:
            extra: further keys next to the usage.
        """
        ...

    def failure(self, reply: ErrorReply) -> bytes:
        """The last events of a stream that failed after its first."""
        ...


class WholeEncoder(Protocol):
    """The only object in the response to a request without `stream`."""

    @property
    def short(self) -> bool:
        """Whether encoding the body takes negligible time."""
        ...

    def add(self, index: int, out: Visible) -> None:
        """Add the visible output of one update."""
        ...

    def body(self, extra: Mapping[str, Any]) -> bytes:
        """The body, after every choice has finished.

        Args:
            extra: further keys.
        """
        ...


@dataclass(frozen=True, slots=True)
class WireForm:
    """One wire form."""

    events: Callable[[Answering], EventEncoder]
    whole: Callable[[Answering], WholeEncoder]


def event(payload: bytes) -> bytes:
    """One event around a JSON text."""
    return b"data: " + payload + b"\n\n"


# Output of a request without `stream`, collected until it is complete, and OpenAI's object made of it.

MANY_LOGPROBS = 1000
"""Log-probabilities that take about 10 ms to encode."""


class Collected:
    """All visible output of one choice."""

    __slots__ = ("end", "logprobs", "parts", "tokens")

    def __init__(self) -> None:
        self.parts: list[Part] = []
        self.tokens: list[int] = []
        self.logprobs: list[LogprobEntry] = []
        self.end = Visible()

    def add(self, out: Visible) -> None:
        """Add the visible output of one update."""
        self.parts.extend(out.parts)
        self.tokens.extend(out.tokens)
        self.logprobs.extend(out.logprobs)
        if out.finish is not None:
            self.end = out

    @property
    def text(self) -> str:
        """The text among the parts."""
        return "".join(part for part in self.parts if isinstance(part, str))

    @property
    def thought(self) -> str:
        """The reasoning among the parts."""
        return "".join(part.text for part in self.parts if isinstance(part, ReasoningPart))

    @property
    def calls(self) -> "list[WholeCall]":
        """The calls among the parts."""
        calls: list[WholeCall] = []
        for part in self.parts:
            if isinstance(part, CallPart):
                if part.name is not None:
                    calls.append(WholeCall(part.id or "", part.name, "", part.custom))
                calls[part.index].arguments += part.arguments
        return calls


@dataclass(slots=True)
class WholeCall:
    """One call, possibly incomplete; for a custom tool `arguments` is its input text."""

    id: str
    name: str
    arguments: str
    custom: bool = False


class WholeShape(Protocol):
    """Shape of a response's choices."""

    name: str
    """The response's `object`."""

    def choice(self, index: int, collected: Collected) -> dict[str, Any]:
        """A choice's own fields: its output and log-probabilities."""
        ...

    def placed(
        self, choices: list[dict[str, Any]], prompt_facts: Sequence[Mapping[str, Any]]
    ) -> tuple[list[dict[str, Any]], Mapping[str, Any]]:
        """Choices, and keys of the response itself; the data of each choice's prompt is in either."""
        ...


class WholeAnswer:
    """Collects all visible output and encodes it once; a `WholeEncoder`."""

    def __init__(self, answering: Answering, shape: Callable[[Answering], WholeShape]) -> None:
        self._answering = answering
        self._order = answering.order
        self._shape = shape(answering)
        self._collected = [Collected() for _ in answering.choices]

    def add(self, index: int, out: Visible) -> None:
        """Add the visible output of one update."""
        self._collected[index].add(out)

    @property
    def short(self) -> bool:
        """Whether encoding the body takes negligible time."""
        many = sum(len(one.logprobs) for one in self._collected) >= MANY_LOGPROBS
        return self._order.options.prompt_logprobs is None and not many

    def body(self, extra: Mapping[str, Any]) -> bytes:
        """The response body."""
        order, choices = self._order, self._answering.choices
        shown = [self._choice(choice.index) for choice in choices]
        shown, facts = self._shape.placed(shown, [self._prompt_facts(choice) for choice in choices])
        answer = {
            **order.head(self._shape.name),
            "choices": shown,
            "usage": usage(order, choices),
            **times(self._answering.timing, choices),
            **extra,
            **facts,
        }
        return msgspec.json.encode(answer)

    def _choice(self, index: int) -> dict[str, Any]:
        collected = self._collected[index]
        shown = self._shape.choice(index, collected)
        shown["finish_reason"] = collected.end.finish
        shown["stop_reason"] = collected.end.stop_reason
        if self._order.options.token_ids:
            shown["token_ids"] = collected.tokens
        return shown

    def _prompt_facts(self, choice: ChoiceOutput) -> dict[str, Any]:
        """The prompt's ids and log-probabilities, if requested."""
        options = self._order.options
        prompt = self._order.prompts[choice.index // self._order.n]
        facts: dict[str, Any] = {}
        if options.token_ids:
            facts["prompt_token_ids"] = prompt
        if options.prompt_logprobs is not None:
            values = choice.prompt_logprobs
            facts["prompt_logprobs"] = prompt_logprobs(
                prompt, values, options.prompt_logprobs, self._answering.tokenizer
            )
        return facts
