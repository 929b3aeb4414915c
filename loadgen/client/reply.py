"""Measured part of a server's JSON: chunks of streams, whole responses, errors.

Only fields that are read are declared; msgspec skips the rest without building it. Every field may be missing or null,
for servers differ.
"""

from typing import Annotated, Any

import msgspec

from loadgen import json_text
from loadgen.errors import NOT_JSON

Count = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
"""A number of tokens; records keep them in 32 bits."""


class PromptDetails(msgspec.Struct):
    """Prompt tokens read from a cache."""

    cached_tokens: Count | None = None


class CompletionDetails(msgspec.Struct):
    """Part of the response that was reasoning."""

    reasoning_tokens: Count | None = None


class ReplyUsage(msgspec.Struct):
    """Token counts of the server; the only ones that are ever reported."""

    prompt_tokens: Count | None = None
    completion_tokens: Count | None = None
    prompt_tokens_details: PromptDetails | None = None
    completion_tokens_details: CompletionDetails | None = None


class Said(msgspec.Struct):
    """A chat delta or message. Servers name reasoning in one of two ways, or both at once with the same text."""

    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    refusal: str | None = None
    tool_calls: list[msgspec.Raw] | None = None
    function_call: dict[str, msgspec.Raw] | None = None


class ReplyChoice(msgspec.Struct):
    """One of `n` choices; `text` for completions, `delta` for chat streams, `message` for whole chat responses."""

    index: int = 0
    text: str | None = None
    delta: Said | None = None
    message: Said | None = None
    finish_reason: str | None = None
    token_ids: list[int] | None = None


class Reply(msgspec.Struct):
    """A chunk or a whole response. Older servers put `message` at the top level of errors."""

    choices: list[ReplyChoice] | None = None
    usage: ReplyUsage | None = None
    metrics: dict[str, Any] | None = None
    error: Any = None
    message: Any = None


decode_short = msgspec.json.Decoder(Reply).decode
"""For what is at most `SHORT_BYTES` long, and so not dangerously deep: the thousands of chunks a second are."""
decode_reply = json_text.Decoder(Reply).decode
"""Decoder for all other replies."""
SHORT_BYTES = 512
"""Fewer than the levels that any version of Python follows."""

ERROR_CHARS = 300
"""Characters kept of an error's text; a longer one is usually a page of HTML."""


def error_text(error: object) -> str:
    """The text of an error object, in one line."""
    if isinstance(error, dict):
        for name in ("message", "detail", "msg", "error"):
            if error.get(name):
                return error_text(error[name])
    text = error if isinstance(error, str) else msgspec.json.encode(error).decode()
    return " ".join(text.split())[:ERROR_CHARS]


def body_error(body: bytes) -> str:
    """The text of an error response's body, JSON or not, in one line; empty for an empty body."""
    try:
        return error_text(json_text.decode(body))
    except NOT_JSON:
        return " ".join(body[: 4 * ERROR_CHARS].decode(errors="replace").split())[:ERROR_CHARS]


def times_in_seconds(metrics: dict[str, Any]) -> dict[str, float]:
    """Server-side times of vLLM's `metrics` object [s]: `queue_time_ms` -> "queue", `time_to_first_token_ms` -> "ttft".

    Anything that is no time (no unit in its name, or a number beyond all reason) is left out.
    """
    found = {}
    for name, value in metrics.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < _BEYOND_REASON:
            continue
        for suffix, factor in (("_ms", 1e-3), ("_us", 1e-6), ("_seconds", 1.0), ("_s", 1.0)):
            if name.endswith(suffix):
                plain = name.removesuffix(suffix)
                short = _SHORT.get(plain, plain.removesuffix("_time"))
                found[short] = value * factor
                break
    return found


_BEYOND_REASON = 1e15
"""In any unit: 30 years of microseconds. A whole number may have more digits than a float can hold."""

_SHORT = {
    "time_to_first_token": "ttft",
    "time_per_output_token": "tpot",
    "mean_time_per_output_token": "tpot",
    "mean_itl": "itl",
    "e2e_latency": "e2e",
}
