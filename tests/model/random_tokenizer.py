"""A byte-level BPE tokenizer for random checkpoints: every id has a text, every text has ids."""

import json
from collections.abc import Sequence
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

SPECIAL_TOKENS = ("<|pad|>", "<|bos|>", "<|eos|>", "<|system|>", "<|user|>", "<|assistant|>")

CHAT_TEMPLATE = (
    "<|bos|>{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)

# Pairs merged after the bytes, most frequent first; Ġ is the byte-level form of a leading space.
_MERGES = ("t h", "th e", "Ġ the", "i n", "a n", "Ġ a", "e r", "o n", "r e", "an d", "Ġ and", "in g", "o u", "Ġ t")


def write_tokenizer(
    folder: Path, vocab_size: int, max_length: int, *, markers: Sequence[str] = (), template: str = CHAT_TEMPLATE
) -> None:
    """Write tokenizer.json and tokenizer_config.json.

    Args:
        vocab_size: ids that must have a text; beyond bytes and merges come made-up words that encoding never uses.
        markers: tokens of calls and reasoning, the last of these ids.
    Effects: writes two files.
    """
    pieces = [*SPECIAL_TOKENS, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    pieces += [merge.replace(" ", "") for merge in _MERGES]
    pieces += [f"Ġw{i}" for i in range(len(pieces), vocab_size - len(markers))]
    merges = [(left, right) for left, right in (merge.split(" ") for merge in _MERGES)]
    vocab = {piece: i for i, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL_TOKENS])
    tokenizer.add_tokens([AddedToken(marker, normalized=False, special=False) for marker in markers])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<|bos|>",
        "eos_token": "<|eos|>",
        "pad_token": "<|pad|>",
        "model_max_length": max_length,
        "clean_up_tokenization_spaces": False,
        "chat_template": template,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
