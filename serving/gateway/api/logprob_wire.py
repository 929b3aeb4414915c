"""Log-probabilities in OpenAI's two wire forms: a list of objects for chat, parallel lists for completions."""

from collections.abc import Sequence
from typing import Any

from serving.gateway.api.choice import LogprobEntry
from serving.gateway.api.detokenizer import is_text
from serving.gateway.api.tokenizer import Tokenizer
from serving.values.sequence import TokenLogprobs

LOWEST = -9999.0
"""vLLM's substitute for negative infinity, which JSON does not have."""
_BYTES = "bytes:"


def chat_logprobs(entries: Sequence[LogprobEntry], top: int, tokenizer: Tokenizer, *, as_ids: bool) -> dict[str, Any]:
    """`{content: [{token, logprob, bytes, top_logprobs}], refusal}`."""

    def one(token: int, logprob: float) -> dict[str, Any]:
        return {
            "token": f"token_id:{token}" if as_ids else _text_or(token, tokenizer, ""),
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
    """`{tokens, token_logprobs, top_logprobs, text_offset}`; null for the first token of a prompt."""
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
    """vLLM's form: for each prompt position a map of token ids to log-probabilities; null for the first."""
    result: list[dict[str, Any] | None] = [None]
    for entry in values[: len(prompt) - 1]:
        pairs = [(entry.token, entry.logprob), *(pair for pair in entry.top[:top] if pair[0] != entry.token)]
        result.append(
            {
                str(t): {"logprob": max(v, LOWEST), "decoded_token": token_name(t, tokenizer, as_ids=False)}
                for t, v in pairs
            }
        )
    return result


def token_name(token: int, tokenizer: Tokenizer, *, as_ids: bool) -> str:
    """A token's name in a completion: its text, or `token_id:N` if `as_ids`.

    Part of a character has no text: its name is its bytes as in OpenAI's API, `bytes:\\xf0\\x9f`, so that the names of
    consecutive tokens still give the text.
    """
    return f"token_id:{token}" if as_ids else _text_or(token, tokenizer, _BYTES)


def _text_or(token: int, tokenizer: Tokenizer, prefix: str) -> str:
    """The token's text; or `prefix` and its escaped bytes, if they are not text or could be mistaken for such bytes."""
    raw = tokenizer.token_bytes(token)
    if is_text(raw) and not (prefix and raw.startswith(prefix.encode())):
        return raw.decode() if tokenizer.bytes_of is not None else tokenizer.token_text(token)
    plain = (chr(byte) if 0x20 <= byte < 0x7F and byte != 0x5C else f"\\x{byte:02x}" for byte in raw)
    return prefix + "".join(plain)


def _top_map(values: TokenLogprobs, top: int, tokenizer: Tokenizer, *, as_ids: bool) -> dict[str, float]:
    """The alternatives and the token itself, each by its name.

    If two tokens have the same text, the chosen token gets it, otherwise the likelier; the other is named by its id.
    """
    names = {values.token: token_name(values.token, tokenizer, as_ids=as_ids)}
    taken = set(names.values())
    result: dict[str, float] = {}
    for token, logprob in (*values.top[:top], (values.token, values.logprob)):
        if token not in names:
            name = token_name(token, tokenizer, as_ids=as_ids)
            names[token] = f"token_id:{token}" if name in taken else name
            taken.add(names[token])
        result.setdefault(names[token], max(logprob, LOWEST))
    return result
