"""A tokenizer like SentencePiece's."""

from tokenizers import Tokenizer as RawTokenizer
from tokenizers import decoders, models

from serving.gateway.api.tokenizer import Tokenizer


def sentencepiece_like() -> Tokenizer:
    """Metaspace pieces with byte fallback, like Llama's: the decoder strips, fuses and assembles characters."""
    words = ["▁the", "▁cat", "s", "▁", "e", "▁你", "好"]
    vocab = {f"<0x{b:02X}>": b for b in range(256)} | {word: 256 + i for i, word in enumerate(words)}
    vocab |= {"<s>": 256 + len(words)}
    raw = RawTokenizer(models.BPE(vocab=vocab, merges=[], byte_fallback=True, unk_token="<s>"))
    raw.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    raw.add_special_tokens(["<s>"])
    return Tokenizer.from_raw(raw, {"bos_token": "<s>"})


SENTENCEPIECE = sentencepiece_like()
