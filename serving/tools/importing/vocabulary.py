"""Tokens of a GGUF file with their attributes, validated."""

from collections.abc import Mapping
from dataclasses import dataclass

from gguf.constants import TokenType

from serving.errors import ModelError
from serving.tools.importing.gguf_file import Value

_PREFIX = "tokenizer.ggml."
ROLES = {
    "bos_token": "bos",
    "eos_token": "eos",
    "unk_token": "unknown",
    "pad_token": "padding",
    "sep_token": "seperator",
}
"""Names of special tokens in tokenizer_config.json, and in GGUF before `_token_id`."""
_ENDS = ("eot", "eom")
_END_TEXTS = frozenset({"<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>"})
"""Control tokens that end an answer, whichever of them the file calls the end: instruct models have several."""


@dataclass(frozen=True, slots=True)
class GgufVocabulary:
    """A file's tokenizer from its keys `tokenizer.ggml.…`.

    Args:
        values: of the whole file.
        tokens: texts in the vocabulary's own spelling, by id.
        kinds: of each token.
    """

    values: Mapping[str, Value]
    tokens: list[str]
    kinds: list[int]

    @classmethod
    def read(cls, values: Mapping[str, Value], rows: int) -> "GgufVocabulary":
        """Read the tokens.

        Args:
            rows: of the embedding.
        Raises: ModelError if there are none, more than rows, or their attributes do not fit.
        """
        tokens = texts(values, "tokens")
        if len(tokens) > rows:
            raise ModelError(f"its tokenizer has {len(tokens)} tokens, and its embedding {rows} rows only")
        kinds = values.get(_PREFIX + "token_type", [int(TokenType.NORMAL)] * len(tokens))
        if not isinstance(kinds, list) or len(kinds) != len(tokens) or isinstance(kinds[0], str):
            raise ModelError(f"{_PREFIX}token_type does not have one for each of the {len(tokens)} tokens")
        found = cls(values, tokens, [int(kind) for kind in kinds])
        if len(found.ids) != sum(1 for _ in found._used()):
            raise ModelError(f"{_PREFIX}tokens has a token twice")
        return found

    @property
    def ids(self) -> dict[str, int]:
        """Ids by text; without those that only fill the vocabulary up."""
        return {self.tokens[number]: number for number in self._used()}

    def of_kind(self, kind: TokenType) -> list[str]:
        """Texts of the tokens of one kind."""
        return [token for token, own in zip(self.tokens, self.kinds, strict=True) if own == kind]

    def special(self, role: str) -> int | None:
        """Id of a special token; `role` as GGUF names it.

        Raises: ModelError if it is no id of a token.
        """
        number = self.values.get(f"{_PREFIX}{role}_token_id")
        if number is None:
            return None
        if not isinstance(number, int) or not 0 <= number < len(self.tokens):
            raise ModelError(f"{_PREFIX}{role}_token_id is {repr(number)[:40]}, of {len(self.tokens)} tokens")
        return number

    def names(self) -> dict[str, str]:
        """Special tokens by their names in tokenizer_config.json."""
        numbers = {name: self.special(role) for name, role in ROLES.items()}
        return {name: self.tokens[number] for name, number in numbers.items() if number is not None}

    def ends(self) -> list[int]:
        """Ids that end an answer, the one that the file calls the end first."""
        own = [self.special("eos"), *(self.special(role) for role in _ENDS)]
        known = [self.ids.get(text) for text in sorted(_END_TEXTS & set(self.of_kind(TokenType.CONTROL)))]
        return list(dict.fromkeys(number for number in (*own, *known) if number is not None))

    def flag(self, name: str, default: bool) -> bool:
        """A switch.

        Raises: ModelError if it is none.
        """
        value = self.values.get(_PREFIX + name, default)
        if not isinstance(value, bool):
            raise ModelError(f"{_PREFIX}{name} is {repr(value)[:40]}, which is neither true nor false")
        return value

    def _used(self) -> list[int]:
        return [number for number, kind in enumerate(self.kinds) if kind != TokenType.UNUSED]


def texts(values: Mapping[str, Value], name: str) -> list[str]:
    """A list of texts below `tokenizer.ggml.`.

    Raises: ModelError if there is none.
    """
    found = values.get(_PREFIX + name)
    if not isinstance(found, list) or not found or not isinstance(found[0], str):
        raise ModelError(f"it lacks the list {_PREFIX}{name}")
    return [str(one) for one in found]


def text(values: Mapping[str, Value], name: str, default: str = "") -> str:
    """A word below `tokenizer.ggml.`."""
    found = values.get(_PREFIX + name, default)
    return found if isinstance(found, str) else default
