"""Creates tokenizer.json and tokenizer_config.json from a GGUF file's tokenizer keys.

Two kinds are made: byte-level BPE (`gpt2`), and the BPE of SentencePiece (`llama`), whose merges follow from its tokens
and their scores.
"""

import logging
from dataclasses import dataclass

from gguf.constants import TokenType
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, processors

from serving.errors import ModelError
from serving.tools.importing.pre_tokenizers import GPT2, SPLITTINGS, Splitting
from serving.tools.importing.vocabulary import GgufVocabulary, text, texts

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
