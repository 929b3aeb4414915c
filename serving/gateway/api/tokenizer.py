"""A Hugging Face fast tokenizer, loaded from a model folder without importing `transformers`.

Adds to `tokenizers.Tokenizer` the special tokens by role, a table of each token's raw bytes (for incremental decoding
in constant time and for the `bytes` of log-probabilities) and tolerant decoding of single tokens.
"""

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as RawTokenizer

from hardware.nesting import parse_json
from serving.errors import ModelError
from serving.grammar.vocabulary import Vocabulary
from serving.regular_file import MOST_JSON_BYTES, check_regular, read_regular

_LONG_TEXT = 2048
"""Characters: a few hundred microseconds of work."""
_BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")
"""SentencePiece's token for a byte."""
_FEW_IDS = 1 << 18
"""Ids accepted for any tokenizer, however short its file; a token takes several bytes in the file."""
SPECIAL_NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object; `{}` when the file does not exist.

    Raises: ModelError when it is unreadable or not an object.
    """
    if not path.is_file():
        return {}
    try:
        value = parse_json(read_regular(path, most_bytes=MOST_JSON_BYTES, within=path.parent))
    except (OSError, ValueError) as error:
        raise ModelError(f"cannot read {path}: {error}; copy the file again from the original checkpoint") from error
    if not isinstance(value, dict):
        raise ModelError(f"{path} must hold a JSON object; copy the file again from the original checkpoint")
    return value


def byte_level_alphabet() -> dict[str, int]:
    """Byte of each printable character that encodes one in byte-level BPE vocabularies.

    Source: GPT-2's byte encoder: printable Latin-1 bytes encode themselves, the rest follow from U+0100.
    """
    own = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    alphabet = {chr(byte): byte for byte in own}
    others = (byte for byte in range(256) if byte not in set(own))
    alphabet.update({chr(256 + i): byte for i, byte in enumerate(others)})
    return alphabet


def byte_table(raw: RawTokenizer) -> tuple[bytes, ...] | None:
    """Bytes of every token id, or None when the decoder is not purely byte-level.

    A token with a character outside the alphabet (an added token) is its own UTF-8 text, as in `tokenizers`.
    """
    decoder = json.loads(raw.to_str()).get("decoder") or {}
    if decoder.get("type") == "Sequence" and len(decoder["decoders"]) == 1:
        decoder = decoder["decoders"][0]
    if decoder.get("type") != "ByteLevel":
        return None
    alphabet = byte_level_alphabet()
    table: list[bytes] = [b""] * (max(raw.get_vocab(with_added_tokens=True).values(), default=-1) + 1)
    for token, index in raw.get_vocab(with_added_tokens=True).items():
        try:
            table[index] = bytes([alphabet[char] for char in token])
        except KeyError:
            table[index] = token.encode()
    return tuple(table)


@dataclass(frozen=True)
class Tokenizer:
    """Text to token ids and back, for one model.

    Args:
        special_tokens: `bos_token`, `eos_token` ... to their text, as the folder's configuration names them.
        special_ids: ids left out of the text when special tokens are skipped.
        bytes_of: each id's bytes, or None where a token has no bytes of its own (not byte-level).
        vocab_size: one more than the largest id.
        config: the folder's tokenizer_config.json.
    """

    raw: RawTokenizer
    special_tokens: dict[str, str]
    special_ids: frozenset[int]
    bytes_of: tuple[bytes, ...] | None
    vocab_size: int
    config: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def from_folder(cls, folder: Path | str) -> "Tokenizer":
        """Load `tokenizer.json` and the names of special tokens from its folder.

        Raises: ModelError when the folder has no readable `tokenizer.json`.
        """
        path = Path(folder) / "tokenizer.json"
        if not path.is_file():
            raise ModelError(f"{path} does not exist; the model folder needs a fast tokenizer (tokenizer.json)")
        try:
            size = check_regular(path, within=path.parent)
            raw = RawTokenizer.from_file(str(path))
        except Exception as error:  # tokenizers raises bare Exception
            raise ModelError(f"cannot load {path}: {error}; copy it again from the original checkpoint") from error
        _check_ids(path, raw, max(size, _FEW_IDS))
        config = read_json(path.parent / "tokenizer_config.json")
        named = {**read_json(path.parent / "special_tokens_map.json"), **config}
        special = {name: text for name in SPECIAL_NAMES if (text := _token_text(named.get(name)))}
        return replace(cls.from_raw(raw, special), config=config)

    @classmethod
    def from_raw(cls, raw: RawTokenizer, special_tokens: dict[str, str]) -> "Tokenizer":
        """Wrap a tokenizer that is already in memory."""
        raw.no_truncation()
        raw.no_padding()
        special = frozenset(i for i, token in raw.get_added_tokens_decoder().items() if token.special)
        size = max(raw.get_vocab(with_added_tokens=True).values(), default=-1) + 1
        return cls(raw, special_tokens, special, byte_table(raw), size)

    @cached_property
    def _longest_token(self) -> int | None:
        """Characters of the longest token; None if tokens are not always pieces of the text itself."""
        if self.bytes_of is None or self.raw.normalizer is not None:
            return None
        return max((len(own) for own in self.bytes_of), default=1) or 1

    def least_tokens(self, text: str) -> int:
        """A cheap lower bound of the tokens of `text`, to refuse a much too long prompt without encoding it."""
        return 0 if self._longest_token is None else len(text) // self._longest_token

    @property
    def eos_id(self) -> int | None:
        """Id of the end-of-sequence token; None if the folder names none."""
        text = self.special_tokens.get("eos_token")
        return None if text is None else self.raw.token_to_id(text)

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Token ids of `text`. Encoding a long one releases the GIL, which the library's plain `encode` would hold."""
        if len(text) < _LONG_TEXT:
            ids: list[int] = self.raw.encode(text, add_special_tokens=add_special_tokens).ids
        else:
            ids = self.raw.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0].ids
        return ids

    @cached_property
    def added_ends(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Special tokens that the tokenizer adds before and after every text."""
        bare, whole = (self.encode("a", add_special_tokens=special) for special in (False, True))
        for front in range(len(whole) - len(bare) + 1) if bare else ():
            if whole[front : front + len(bare)] == bare:
                return tuple(whole[:front]), tuple(whole[front + len(bare) :])
        return (), ()

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Text of `ids`; bytes that are not UTF-8 become U+FFFD, unknown ids are dropped."""
        if self.bytes_of is not None:
            return self.join_bytes(ids, skip_special_tokens=skip_special_tokens).decode(errors="replace")
        text: str = self.raw.decode(list(ids), skip_special_tokens=skip_special_tokens)
        return text

    def join_bytes(self, ids: Iterable[int], *, skip_special_tokens: bool) -> bytes:
        """Concatenated bytes of `ids`; only for byte-level tokenizers."""
        table = self.bytes_of
        assert table is not None, "join_bytes needs a byte-level tokenizer"
        skipped = self.special_ids if skip_special_tokens else ()
        size = len(table)
        return b"".join([table[i] for i in ids if i not in skipped and i < size])

    def token_text(self, token: int) -> str:
        """Text of one token within a longer text, special tokens included; partial characters become U+FFFD."""
        if self.bytes_of is not None or self._anchor is None:
            return self.decode((token,), skip_special_tokens=False)
        # Other decoders strip a leading space: decode after an anchor token, and remove the anchor's text again.
        anchor, before = self._anchor
        text = self.decode((anchor, token), skip_special_tokens=False)
        return text[len(before) :] if text.startswith(before) else self.decode((token,), skip_special_tokens=False)

    def token_bytes(self, token: int) -> bytes:
        """One token's bytes."""
        if self.bytes_of is not None:
            return self.bytes_of[token] if token < len(self.bytes_of) else b""
        single = _BYTE_TOKEN.fullmatch(self.token_string(token))
        if single is not None and self.token_text(token) != single[0]:  # the decoder treats it as a byte
            return bytes([int(single[1], 16)])
        return self.token_text(token).encode()

    @cached_property
    def _anchor(self) -> tuple[int, str] | None:
        ids = self.encode("a", add_special_tokens=False)
        return (ids[-1], self.decode(ids[-1:], skip_special_tokens=False)) if ids else None

    def vocabulary(self, size: int) -> Vocabulary:
        """The vocabulary for grammars.

        Args:
            size: of the model's vocabulary; ids missing in the model or the tokenizer are never sampled.
        """
        added = frozenset(self.raw.get_added_tokens_decoder())
        own = range(min(size, self.vocab_size))
        tokens = [self.token_string(i).encode() if i in added else self.token_bytes(i) for i in own]
        plain = RawTokenizer(self.raw.model)  # has no added tokens: their spelling is ordinary text
        if self.raw.normalizer is not None:
            plain.normalizer = self.raw.normalizer
        if self.raw.pre_tokenizer is not None:
            plain.pre_tokenizer = self.raw.pre_tokenizer

        def encode(text: str) -> list[int]:
            ids: list[int] = plain.encode(text, add_special_tokens=False).ids
            return ids

        tokens += [b""] * (size - len(tokens))
        return Vocabulary(tuple(tokens), frozenset(i for i in added if i < size), encode)

    def token_string(self, token: int) -> str:
        """One token's spelling in the vocabulary (`Ġthe`); empty for an id without an entry."""
        return self.raw.id_to_token(token) or ""


def _check_ids(path: Path, raw: RawTokenizer, limit: int) -> None:
    """Check the largest id, because tables of tokens have an entry for every id up to it.

    Raises: ModelError if it is too large for a file of this size.
    """
    largest = max(raw.get_vocab(with_added_tokens=True).values(), default=0)
    if largest >= limit:
        raise ModelError(f"{path} has a token with id {largest}, but fewer than half as many tokens; copy it again")


def _token_text(value: object) -> str | None:
    """Text of a special token, given as a string or as an object with `content`; otherwise None."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) and value else None
