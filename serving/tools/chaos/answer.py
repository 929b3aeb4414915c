"""Response of one request, and its comparison with that of the undisturbed system. Pure."""

import math
from dataclasses import dataclass, field
from typing import Any, Literal

from serving.tools.chaos.asks import Ask

Outcome = Literal["open", "finished", "failed", "cancelled"]

LOGPROB_TOLERANCE = 1e-3
"""Prompts are computed in other chunks when a stream is resumed: float32 sums may differ in their last bits."""


@dataclass(slots=True)
class ChoiceSoFar:
    """One choice so far. `arrivals`: time and number of new tokens of each piece."""

    tokens: list[int] = field(default_factory=list)
    text: str = ""
    logprobs: list[float] = field(default_factory=list)
    finish: str | None = None
    arrivals: list[tuple[float, int]] = field(default_factory=list)


@dataclass(slots=True)
class StreamedAnswer:
    """One request that was sent. Times are those of one monotonic clock [s].

    Args:
        reason: why it failed; empty unless it did.
        resumptions: reported number of continuations on another instance.
        burst: number of the fault that sent it; None for the steady load.
        replicas: names of those that computed it, in the order of their first work; reported at the end.
    """

    ask: Ask
    sent_s: float
    burst: int | None = None
    choices: list[ChoiceSoFar] = field(default_factory=list)
    outcome: Outcome = "open"
    reason: str = ""
    ended_s: float = 0.0
    usage: dict[str, Any] = field(default_factory=dict)
    replicas: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self.choices = self.choices or [ChoiceSoFar() for _ in range(self.ask.choices)]

    @property
    def resumptions(self) -> int:
        """Reported number of continuations on another instance."""
        return int(self.usage.get("resumptions", 0))

    def take(self, body: dict[str, Any], now: float) -> None:
        """Add one event of a stream, or a whole response.

        Raises: KeyError, TypeError, IndexError if it has another form.
        """
        if body.get("usage"):
            self.usage = body["usage"]
        self.replicas = tuple(body.get("replicas") or self.replicas)
        for piece in body["choices"]:
            choice = self.choices[piece["index"]]
            tokens = piece.get("token_ids") or []
            choice.tokens += tokens
            choice.text += _text(piece)
            choice.logprobs += _logprobs(piece.get("logprobs"))
            choice.finish = piece.get("finish_reason") or choice.finish
            if tokens:
                choice.arrivals.append((now, len(tokens)))

    @property
    def complete(self) -> bool:
        """Whether every choice has finished."""
        return all(choice.finish for choice in self.choices)

    def compact(self) -> None:
        """Effects: drops data that is no longer needed after the comparison; a long run sends many requests."""
        for choice in self.choices:
            choice.text, choice.logprobs = "", []


def _text(piece: dict[str, Any]) -> str:
    """Text of a piece in any of the four wire forms: of the content, and of calls, without the calls' ids."""
    if "text" in piece:
        return piece["text"] or ""
    said = piece.get("delta") or piece.get("message") or {}
    functions = [call["function"] for call in said.get("tool_calls") or ()]
    calls = [function.get("name", "") + function.get("arguments", "") for function in functions]
    return "".join([said.get("content") or "", *calls])


def _logprobs(value: dict[str, Any] | None) -> list[float]:
    if not value:
        return []
    if value.get("content") is not None:
        return [float(entry["logprob"]) for entry in value["content"]]
    return [float(one) for one in value.get("token_logprobs") or () if one is not None]


def difference(answer: StreamedAnswer, reference: StreamedAnswer) -> str | None:
    """Difference of a response from the undisturbed one; None if there is none.

    A response that was cut is compared up to the cut.
    """
    for index, (got, wanted) in enumerate(zip(answer.choices, reference.choices, strict=True)):
        cut = answer.outcome == "cancelled"
        where = f"choice {index}"
        tokens = wanted.tokens[: len(got.tokens)] if cut else wanted.tokens
        if got.tokens != tokens:
            return f"{where}: {_first_other(got.tokens, tokens)}"
        if cut:
            continue
        if got.finish != wanted.finish:
            return f"{where}: ended by {got.finish}, not {wanted.finish}"
        if got.text != wanted.text:
            return f"{where}: equal tokens, other text"
        if len(got.logprobs) != len(wanted.logprobs):
            return f"{where}: {len(got.logprobs)} log-probabilities, not {len(wanted.logprobs)}"
        if logprob_distance(answer, reference) > LOGPROB_TOLERANCE:
            return f"{where}: log-probabilities differ by {logprob_distance(answer, reference):.2g}"
    return None


def logprob_distance(answer: StreamedAnswer, reference: StreamedAnswer) -> float:
    """Largest difference of two log-probabilities of the same token; infinite if one is no number."""
    pairs = [
        0.0 if a == b else math.inf if math.isnan(a - b) else abs(a - b)
        for got, wanted in zip(answer.choices, reference.choices, strict=True)
        for a, b in zip(got.logprobs, wanted.logprobs, strict=False)
    ]
    return max(pairs, default=0.0)


def _first_other(got: list[int], wanted: list[int]) -> str:
    for position, (a, b) in enumerate(zip(got, wanted, strict=False)):
        if a != b:
            return f"token {position} is {a}, not {b}"
    return f"{len(got)} tokens, not {len(wanted)}"
