"""Block hashes of recorded prompts, for workloads that do not know their own.

Each block's hash covers the blocks before it, so that equal ids mean equal prefixes; ids count from 0 in order of
appearance. Text is cut by bytes, since a trace can be recorded where no tokenizer is; the number of blocks still is
that of the tokens, so that a simulator finds as many ids as it has blocks.
"""

import math
from hashlib import blake2b

import msgspec

from loadgen import json_text
from loadgen.errors import NOT_JSON

RecordedPrompt = str | list[int]
"""Text, or token ids."""
_DIGEST_BYTES = 16


def prompt_of(body: str) -> RecordedPrompt | None:
    """The prompt of a request body: text, token ids, or chat messages as one text; None if it has none."""
    try:
        fields = json_text.decode(body)
    except NOT_JSON:
        return None
    if not isinstance(fields, dict):
        return None
    messages, prompt = fields.get("messages"), fields.get("prompt")
    if isinstance(messages, list):
        return "".join(_message_text(message) for message in messages)
    if isinstance(prompt, list) and prompt and all(isinstance(part, int) for part in prompt):
        return prompt
    if isinstance(prompt, list) and all(isinstance(part, str) for part in prompt):
        return "\n".join(prompt)
    return prompt if isinstance(prompt, str) else None


def _message_text(message: object) -> str:
    """A chat message as text that differs wherever messages differ."""
    if not isinstance(message, dict):
        return str(message)
    content = message.get("content")
    text = content if isinstance(content, str) else msgspec.json.encode(content).decode()
    return f"{message.get('role')}\n{text}\n"


class BlockHasher:
    """Assigns ids to the blocks of prompts and remembers them."""

    def __init__(self, block_tokens: int, bytes_per_block: int) -> None:
        """`bytes_per_block`: of a text's block."""
        self._block_tokens = block_tokens
        self._bytes_per_block = bytes_per_block
        self._ids: dict[bytes, int] = {}

    def hash_ids(self, prompt: RecordedPrompt, n_tokens: int) -> list[int]:
        """An id for each block of a prompt of `n_tokens` tokens. Effects: remembers new blocks."""
        if isinstance(prompt, str):
            kind, data, step = b"text", prompt.encode("utf-8", "surrogatepass"), self._bytes_per_block
            blocks = math.ceil(n_tokens / self._block_tokens)
        else:
            # Eight bytes per token hold any number that a client may send.
            kind, step = b"ids", 8 * self._block_tokens
            data = b"".join((token % 2**64).to_bytes(8, "little") for token in prompt)
            blocks = math.ceil(len(prompt) / self._block_tokens)
        parent = kind
        found = []
        for index in range(blocks):
            end = None if index == blocks - 1 else (index + 1) * step
            parent = blake2b(parent + data[index * step : end], digest_size=_DIGEST_BYTES).digest()
            found.append(self._ids.setdefault(parent, len(self._ids)))
        return found
