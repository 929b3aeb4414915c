"""Creates tokenizer.json and tokenizer_config.json from a GGUF file's tokenizer keys.

Two kinds are made: byte-level BPE (`gpt2`), and the BPE of SentencePiece (`llama`), whose merges follow from its tokens
and their scores.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass

from gguf.constants import TokenType
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from serving.errors import ModelError
from serving.tools.importing.gguf_file import Value

# Ways of splitting text before byte-pair merges, by the names that GGUF has for them.
#
# Source: the models' own tokenizer.json files; for `deepseek-llm` and `deepseek-coder` the patterns that llama.cpp
# compared with them (src/llama-vocab.cpp).

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_LETTERS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED = rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*"
_LLAMA3 = rf"{_CONTRACTIONS}|{_LETTERS}|\p{{N}}{{1,3}}|{_REST}"
_QWEN2 = rf"{_CONTRACTIONS}|{_LETTERS}|\p{{N}}|{_REST}"
_TEKKEN = rf"{_CASED}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_DEEPSEEK3 = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_RARE = (  # cased letters that DeepSeek's list does not have
    "\u0560-\u0588\u10c7-\u10ff\u1c80-\u1c88\u2d00-\u2d2d\ua790-\ua7fa\uab30-\uab68"
    "\U00010570-\U000105bc\U00016e40-\U00016e7f\U0001d400-\U0001d7cb\U0001df00-\U0001df1e"
)
_DEEPSEEK = (
    r"[\r\n]",
    rf"\s?[\p{{Lu}}\p{{Ll}}\p{{Lt}}&&[^{_RARE}]]+",
    "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+",
    r"\s+$",
    "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+",
    r"\p{N}+",
)
_DEEPSEEK_CODER = (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+", r"\p{N}")
_DEEPSEEK_V3 = (r"\p{N}{1,3}", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+", _DEEPSEEK3)


@dataclass(frozen=True, slots=True)
class Splitting:
    """The way in which a kind of tokenizer splits text before it merges.

    Args:
        patterns: each splits the pieces left whole by the earlier ones; matches are not split further.
        gpt2: then splits like GPT-2.
        digits: splits off every digit first.
        nfc: composes characters first.
        ignore_merges: a piece that is a token as a whole is not merged.
        adds_bos: adds the begin token by default.
    """

    patterns: tuple[str, ...] = ()
    gpt2: bool = False
    digits: bool = False
    nfc: bool = False
    ignore_merges: bool = False
    adds_bos: bool = False

    def pre_tokenizer(self) -> pre_tokenizers.PreTokenizer:
        """The splitting, with bytes as characters at its end."""
        digits = [pre_tokenizers.Digits(individual_digits=True)] if self.digits else []
        splits = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in self.patterns]
        last = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=self.gpt2)
        return pre_tokenizers.Sequence([*digits, *splits, last])

    def normalizer(self) -> normalizers.Normalizer | None:
        """The change of a text before it is split; None without one."""
        return normalizers.NFC() if self.nfc else None


_LLAMA_BPE = Splitting((_LLAMA3,), ignore_merges=True, adds_bos=True)
_SMOLLM = Splitting(digits=True, gpt2=True)
GPT2 = Splitting(gpt2=True)
SPLITTINGS = {
    "gpt-2": GPT2,
    "smollm": _SMOLLM,
    "starcoder": _SMOLLM,
    "llama-bpe": _LLAMA_BPE,
    "llama3": _LLAMA_BPE,
    "llama-v3": _LLAMA_BPE,
    "qwen2": Splitting((_QWEN2,), nfc=True),
    "deepseek-r1-qwen": Splitting((_QWEN2,), nfc=True),
    "tekken": Splitting((_TEKKEN,), ignore_merges=True, adds_bos=True),
    "glm4": Splitting((_LLAMA3,)),
    "chatglm-bpe": Splitting((_LLAMA3,)),
    "deepseek-llm": Splitting(_DEEPSEEK),
    "deepseek-coder": Splitting(_DEEPSEEK_CODER),
    "deepseek-v3": Splitting(_DEEPSEEK_V3),
}
"""By `tokenizer.ggml.pre`."""


# Tokens of a GGUF file with their attributes, validated.

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
        """Ids by text, without unused tokens, which only pad the vocabulary."""
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


# Creates tokenizer.json and tokenizer_config.json from a GGUF file's tokenizer keys.

logger = logging.getLogger(__name__)

_SPACE = "▁"
_NO_CHOICE = ("", "default")


@dataclass(frozen=True, slots=True)
class ImportedTokenizer:
    """A tokenizer.

    Args:
        config: for tokenizer_config.json.
    """

    raw: Tokenizer
    config: dict[str, object]


def build_tokenizer(vocabulary: GgufVocabulary) -> ImportedTokenizer:
    """Make the tokenizer.

    Raises: ModelError if it is of a kind that is not known, or its lists do not fit together.
    Effects: logs a warning if the file does not define how text is split.
    """
    kind = text(vocabulary.values, "model")
    if kind == "gpt2":
        splitting = _splitting(text(vocabulary.values, "pre"))
        raw, adds_bos = _byte_level(vocabulary, splitting), splitting.adds_bos
    elif kind == "llama":
        raw, adds_bos = _sentence_piece(vocabulary), True
    else:
        raise ModelError(f"its tokenizer is of the kind {kind[:40]!r}; 'gpt2' and 'llama' are read")
    special = [*vocabulary.of_kind(TokenType.UNKNOWN), *vocabulary.of_kind(TokenType.CONTROL)]
    raw.add_special_tokens([AddedToken(one, special=True) for one in special])
    raw.add_tokens([AddedToken(one, normalized=False) for one in vocabulary.of_kind(TokenType.USER_DEFINED)])
    ends = {
        name: vocabulary.flag(f"add_{name}_token", default) for name, default in (("bos", adds_bos), ("eos", False))
    }
    _add_ends(raw, vocabulary, **ends)
    config: dict[str, object] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **vocabulary.names(),
        "add_bos_token": ends["bos"],
        "add_eos_token": ends["eos"],
        "clean_up_tokenization_spaces": False,
    }
    return ImportedTokenizer(raw, config)


def _splitting(name: str) -> Splitting:
    if name in _NO_CHOICE:
        logger.warning("the file does not define how its tokenizer splits text: GPT-2's rule is used, ids may differ")
        return GPT2
    if name not in SPLITTINGS:
        known = ", ".join(sorted(SPLITTINGS))
        raise ModelError(
            f"its tokenizer splits text in the way {name[:40]!r}, which is not supported; supported are {known}"
        )
    return SPLITTINGS[name]


def _byte_level(vocabulary: GgufVocabulary, splitting: Splitting) -> Tokenizer:
    ids = vocabulary.ids
    merges = []
    for merge in texts(vocabulary.values, "merges"):
        left, _, right = merge.partition(" ")
        if left not in ids or right not in ids or left + right not in ids:
            raise ModelError(f"tokenizer.ggml.merges has {merge[:40]!r}, which is not made of its tokens")
        merges.append((left, right))
    raw = Tokenizer(models.BPE(vocab=ids, merges=merges, ignore_merges=splitting.ignore_merges))
    if (normalizer := splitting.normalizer()) is not None:
        raw.normalizer = normalizer
    raw.pre_tokenizer = splitting.pre_tokenizer()
    raw.decoder = decoders.ByteLevel()
    return raw


def _sentence_piece(vocabulary: GgufVocabulary) -> Tokenizer:
    scores = vocabulary.values.get("tokenizer.ggml.scores")
    if not isinstance(scores, list) or len(scores) != len(vocabulary.tokens) or isinstance(scores[0], str):
        raise ModelError(f"tokenizer.ggml.scores does not have one for each of the {len(vocabulary.tokens)} tokens")
    if vocabulary.flag("remove_extra_whitespaces", False):
        raise ModelError("tokenizer.ggml.remove_extra_whitespaces is not read")
    unknown = vocabulary.names().get("unk_token") or next(iter(vocabulary.of_kind(TokenType.UNKNOWN)), None)
    raw = Tokenizer(
        models.BPE(
            vocab=vocabulary.ids,
            merges=_merges(vocabulary, [float(score) for score in scores]),
            unk_token=unknown,
            fuse_unk=True,
            byte_fallback=bool(vocabulary.of_kind(TokenType.BYTE)),
        )
    )
    prefix = vocabulary.flag("add_space_prefix", True)
    before = [normalizers.Prepend(_SPACE)] if prefix else []
    raw.normalizer = normalizers.Sequence([*before, normalizers.Replace(" ", _SPACE)])
    after = [decoders.Strip(" ", 1, 0)] if prefix else []
    raw.decoder = decoders.Sequence([decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *after])
    return raw


def _merges(vocabulary: GgufVocabulary, scores: list[float]) -> list[tuple[str, str]]:
    """Pairs of tokens that make a token, the best score first.

    Source: SentencePiece merges the neighbours whose token has the best score; a list of merges in this order does
    the same.
    """
    ids = vocabulary.ids
    normal = {
        token for token, kind in zip(vocabulary.tokens, vocabulary.kinds, strict=True) if kind == TokenType.NORMAL
    }
    found = []
    for token in normal:
        pairs = ((token[:at], token[at:]) for at in range(1, len(token)))
        inside = [(left, right) for left, right in pairs if left in normal and right in normal]
        found += [(-scores[ids[token]], ids[left], ids[right], left, right) for left, right in inside]
    return [(left, right) for *_, left, right in sorted(found)]


def _add_ends(raw: Tokenizer, vocabulary: GgufVocabulary, *, bos: bool, eos: bool) -> None:
    """Let encoding put the special tokens around a text."""
    names, ids = vocabulary.names(), vocabulary.ids
    begin = [names["bos_token"]] if bos and "bos_token" in names else []
    end = [names["eos_token"]] if eos and "eos_token" in names else []
    if begin or end:
        special = [(token, ids[token]) for token in dict.fromkeys((*begin, *end))]
        raw.post_processor = processors.TemplateProcessing(
            single=[*begin, "$A", *end], pair=[*begin, "$A", *end, *begin, "$B:1", *end], special_tokens=special
        )
