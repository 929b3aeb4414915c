"""Log-probabilities in OpenAI's two wire forms: a list of objects for chat, parallel lists for completions."""

from collections.abc import Sequence
from typing import Any

from serving.api.choice import LogprobEntry
from serving.api.tokenizer import Tokenizer
from serving.policy.request import TokenLogprobs

LOWEST = -9999.0
"""JSON has no infinity; vLLM's stand-in for it."""


def chat_logprobs(entries: Sequence[LogprobEntry], top: int, tokenizer: Tokenizer, *, as_ids: bool) -> dict[str, Any]:
    """`{content: [{token, logprob, bytes, top_logprobs}], refusal}`."""

    def one(token: int, logprob: float) -> dict[str, Any]:
        return {
            "token": token_name(token, tokenizer, as_ids=as_ids),
            "logprob": max(logprob, LOWEST),
            "bytes": list(tokenizer.token_bytes(token)),
        }

    content = []
    for entry in entries:
        values = entry.values
        if values is None:
            content.append({**one(entry.token, LOWEST), "top_logprobs": []})
            continue
        alternatives = [one(token, logprob) for token, logprob in values.top[:top]]
        content.append({**one(entry.token, values.logprob), "top_logprobs": alternatives})
    return {"content": content, "refusal": None}


def completion_logprobs(
    entries: Sequence[LogprobEntry], top: int, tokenizer: Tokenizer, *, as_ids: bool
) -> dict[str, Any]:
    """`{tokens, token_logprobs, top_logprobs, text_offset}`; null where nothing stands before a token."""
    tokens, values, tops, offsets = [], [], [], []
    for entry in entries:
        tokens.append(token_name(entry.token, tokenizer, as_ids=as_ids))
        offsets.append(entry.offset)
        values.append(None if entry.values is None else max(entry.values.logprob, LOWEST))
        tops.append(None if entry.values is None else _top_map(entry.values, top, tokenizer, as_ids=as_ids))
    return {"tokens": tokens, "token_logprobs": values, "top_logprobs": tops, "text_offset": offsets}


def prompt_logprobs(
    prompt: Sequence[int], values: Sequence[TokenLogprobs], top: int, tokenizer: Tokenizer
) -> list[dict[str, Any] | None]:
    """vLLM's form: per prompt position a map of token id to its log-probability; null for the first."""
    result: list[dict[str, Any] | None] = [None]
    for entry in values[: len(prompt) - 1]:
        pairs = [(entry.token, entry.logprob), *(pair for pair in entry.top[:top] if pair[0] != entry.token)]
        result.append({str(t): {"logprob": max(v, LOWEST), "decoded_token": tokenizer.token_text(t)} for t, v in pairs})
    return result


def token_name(token: int, tokenizer: Tokenizer, *, as_ids: bool) -> str:
    """How a token is named: its text, or `token_id:N` where texts would be ambiguous."""
    return f"token_id:{token}" if as_ids else tokenizer.token_text(token)


def _top_map(values: TokenLogprobs, top: int, tokenizer: Tokenizer, *, as_ids: bool) -> dict[str, float]:
    """The alternatives and the token itself. Two tokens may share a text: the better one keeps it."""
    result: dict[str, float] = {}
    for token, logprob in (*values.top[:top], (values.token, values.logprob)):
        result.setdefault(token_name(token, tokenizer, as_ids=as_ids), max(logprob, LOWEST))
    return result
