"""The requests of a run: a fixed set that covers the features of a request, each repeatable token by token.

Greedy or seeded, short and long, streamed or whole, with several choices, log-probabilities, stop strings, penalties,
a JSON schema, a call of a tool.
"""

import math
import random
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Literal

from serving.faults.scenario import LoadConfig

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"

_WHO = ("dog", "girl", "bird", "boy", "cat", "bear", "farmer", "rabbit", "queen", "fish", "robot", "mouse")
_WHAT = ("ball", "boat", "cake", "kite", "drum", "hat", "garden", "star", "book", "bridge", "apple", "song")
_HOW = ("little", "brave", "sleepy", "clever", "lonely", "happy", "old", "curious", "tiny", "kind", "silly", "quiet")
_WORDS_PER_SENTENCE = 14
_RECORD = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "animal": {"enum": ["dog", "bear", "rabbit"]},
        "friends": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer"}},
                "required": ["name", "age"],
                "additionalProperties": False,
            },
            "minItems": 2,
            "maxItems": 8,
        },
    },
    "required": ["name", "animal", "friends"],
    "additionalProperties": False,
}
_INTRODUCE = {
    "type": "function",
    "function": {"name": "introduce", "description": "Tell who is in a story.", "parameters": _RECORD},
}


@dataclass(frozen=True, slots=True)
class Ask:
    """One request. `form` names its feature."""

    number: int
    form: str
    path: str
    body: dict[str, Any]

    @property
    def choices(self) -> int:
        """Number of requested choices."""
        return int(self.body.get("n", 1))

    @property
    def streamed(self) -> bool:
        return bool(self.body["stream"])


def make_asks(load: LoadConfig, seed: int, model: str) -> tuple[Ask, ...]:
    """The distinct requests of a run, in the order in which they are sent."""
    rng = random.Random(f"asks-{seed}")
    asks: list[Ask] = []
    while len(asks) < load.asks:
        for form, path, fields in _forms(rng, load):
            body = {"model": model, "stream": True, "return_token_ids": True, "return_replicas": True, **fields}
            if body["stream"]:
                body["stream_options"] = {"include_usage": True}
            asks.append(Ask(len(asks), form, path, body))
    return tuple(islice(asks, load.asks))


def _forms(rng: random.Random, load: LoadConfig) -> list[tuple[str, str, dict[str, Any]]]:
    """One request of each form."""
    long, middle, short = load.longest_tokens, max(2, load.longest_tokens // 2), max(2, load.longest_tokens // 8)
    greedy: dict[str, Any] = {"temperature": 0, "ignore_eos": True}
    return [
        ("greedy", COMPLETIONS, {**greedy, "prompt": _opening(rng), "max_tokens": long}),
        ("short", COMPLETIONS, {**greedy, "prompt": _opening(rng), "max_tokens": short}),
        ("seeded", COMPLETIONS, {**_seeded(rng), "prompt": _opening(rng), "max_tokens": long}),
        ("choices", COMPLETIONS, {**_seeded(rng), "prompt": _opening(rng), "max_tokens": middle, "n": 2}),
        (
            "schema",
            COMPLETIONS,
            {"temperature": 0.8, "seed": rng.randrange(2**31), "prompt": _opening(rng), "max_tokens": long, "n": 3,
             "structured_outputs": {"json": _RECORD}},
        ),
        ("logprobs", CHAT, {**_seeded(rng), **_chat(rng), "max_tokens": middle, "logprobs": True, "top_logprobs": 2}),
        *([_call(rng, long)] if load.tools else []),
        ("stop", COMPLETIONS, {**_seeded(rng), "prompt": _opening(rng), "max_tokens": long, "stop": ["happy", " end"]}),
        (
            "penalties",
            COMPLETIONS,
            {**_seeded(rng), "prompt": _opening(rng), "max_tokens": middle, "presence_penalty": 0.4,
             "frequency_penalty": 0.3, "repetition_penalty": 1.1},
        ),
        ("long prompt", COMPLETIONS, {**greedy, "prompt": _story(rng, load.long_prompt_tokens), "max_tokens": middle}),
        ("whole", COMPLETIONS, {**greedy, "prompt": _opening(rng), "max_tokens": middle, "stream": False}),
        ("whole choices", CHAT, {**_seeded(rng), **_chat(rng), "max_tokens": middle, "n": 2, "stream": False}),
        ("until it ends", CHAT, {"temperature": 0, **_chat(rng), "max_tokens": long}),
        (
            "everything",
            COMPLETIONS,
            {**_seeded(rng), "prompt": _story(rng, load.long_prompt_tokens // 2), "max_tokens": middle, "n": 2,
             "logprobs": 1, "stop": ["The end"], "frequency_penalty": 0.2},
        ),
    ]  # fmt: skip


def _call(rng: random.Random, tokens: int) -> tuple[str, str, dict[str, Any]]:
    choice = {"type": "function", "function": {"name": "introduce"}}
    drawn = {"temperature": 0.8, "seed": rng.randrange(2**31), "n": 3}
    return "tool", CHAT, {**drawn, **_chat(rng), "max_tokens": tokens, "tools": [_INTRODUCE], "tool_choice": choice}


def _seeded(rng: random.Random) -> dict[str, Any]:
    return {"temperature": 0.8, "top_p": 0.95, "seed": rng.randrange(2**31), "ignore_eos": True}


def _chat(rng: random.Random) -> dict[str, Any]:
    text = f"Tell me a story about a {rng.choice(_HOW)} {rng.choice(_WHO)} and a {rng.choice(_WHAT)}."
    return {"messages": [{"role": "user", "content": text}]}


def _opening(rng: random.Random) -> str:
    return f"Once upon a time there was a {rng.choice(_HOW)} {rng.choice(_WHO)} who had a {rng.choice(_WHAT)}."


def _story(rng: random.Random, tokens: int) -> str:
    """Sentences of about this many tokens together."""
    count = max(1, tokens // _WORDS_PER_SENTENCE)
    return " ".join(
        f"The {rng.choice(_HOW)} {rng.choice(_WHO)} saw a {rng.choice(_WHAT)} and told the {rng.choice(_WHO)} about it."
        for _ in range(count)
    )


# Response of one request, and its comparison with that of the undisturbed system. Pure.

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
