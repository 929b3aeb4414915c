"""Ways of splitting text before byte-pair merges, by the names that GGUF has for them.

Source: the models' own tokenizer.json files; for `deepseek-llm` and `deepseek-coder` the patterns that llama.cpp
compared with them (src/llama-vocab.cpp).
"""

from dataclasses import dataclass

from tokenizers import Regex, normalizers, pre_tokenizers

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
