"""The requests of a run: a fixed set that covers the features of a request, each repeatable token by token.

Greedy or seeded, short and long, streamed or whole, with several choices, log-probabilities, stop strings, penalties,
a JSON schema, a call of a tool.
"""

import random
from dataclasses import dataclass
from itertools import islice
from typing import Any

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
        """Whether it is streamed."""
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
