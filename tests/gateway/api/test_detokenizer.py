import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.gateway.api.detokenizer import ByteDetokenizer, Detokenizer, WindowDetokenizer, make_detokenizer
from serving.gateway.api.tokenizer import Tokenizer
from tests.gateway.api.sentencepiece import SENTENCEPIECE
from tests.gateway.api.support import SENTENCES, SPECIAL, train_tokenizer


def byte_level() -> Tokenizer:
    """Byte-level, with added tokens outside the byte alphabet, such as DeepSeek's full-width bars, and one that looks
    like bytes.
    """
    raw = train_tokenizer()
    raw.add_special_tokens(["<｜User｜>"])
    raw.add_tokens(["<tool call>", "Ġ你", "¡¢"])
    return Tokenizer.from_raw(raw, {"eos_token": "<|eos|>"})


BYTE_LEVEL = byte_level()


def in_pieces(detokenizer: Detokenizer, tokens: list[int], sizes: list[int]) -> list[str]:
    out, at = [], 0
    for size in sizes:
        out.append(detokenizer.push(tokens[at : at + size]))
        at += size
    return [*out, detokenizer.push(tokens[at:]), detokenizer.flush()]


@given(
    st.lists(st.integers(0, BYTE_LEVEL.vocab_size + 3), max_size=40),
    st.lists(st.integers(0, 4), max_size=30),
    st.booleans(),
)
def test_byte_level_pieces_equal_the_full_decode(tokens: list[int], sizes: list[int], skip: bool) -> None:
    detokenizer = make_detokenizer(BYTE_LEVEL, skip_special_tokens=skip)
    assert isinstance(detokenizer, ByteDetokenizer)
    pieces = in_pieces(detokenizer, tokens, sizes)
    assert "".join(pieces) == BYTE_LEVEL.raw.decode(tokens, skip_special_tokens=skip)


@pytest.mark.parametrize("token", range(BYTE_LEVEL.vocab_size - 4, BYTE_LEVEL.vocab_size))
def test_added_tokens_stand_for_their_own_text(token: int) -> None:
    assert BYTE_LEVEL.decode([token], skip_special_tokens=False) == BYTE_LEVEL.raw.decode([token], False)


@given(st.lists(st.integers(0, BYTE_LEVEL.vocab_size + 3), max_size=40), st.booleans())
def test_own_decode_equals_the_library(tokens: list[int], skip: bool) -> None:
    assert BYTE_LEVEL.decode(tokens, skip_special_tokens=skip) == BYTE_LEVEL.raw.decode(
        tokens, skip_special_tokens=skip
    )


@given(st.text(max_size=40), st.booleans())
def test_window_pieces_equal_the_full_decode_of_real_text(text: str, byte_level: bool) -> None:
    """Uses texts, not arbitrary tokens: the window is exact for valid UTF-8."""
    tokenizer = BYTE_LEVEL if byte_level else SENTENCEPIECE
    if byte_level:
        tokens = tokenizer.encode(text, add_special_tokens=False)
    else:
        tokens = [256, *text.encode(), 257]  # a word, single bytes, a word
    pieces = in_pieces(WindowDetokenizer(tokenizer, True), tokens, [1] * len(tokens))
    assert "".join(pieces) == tokenizer.raw.decode(tokens, skip_special_tokens=True)


@given(st.lists(st.integers(256, SENTENCEPIECE.vocab_size - 1), max_size=30), st.lists(st.integers(0, 3), max_size=30))
def test_window_pieces_equal_the_full_decode_of_word_pieces(tokens: list[int], sizes: list[int]) -> None:
    detokenizer = make_detokenizer(SENTENCEPIECE, skip_special_tokens=True)
    assert isinstance(detokenizer, WindowDetokenizer)
    pieces = in_pieces(detokenizer, tokens, sizes)
    assert "".join(pieces) == SENTENCEPIECE.raw.decode(tokens, skip_special_tokens=True)


@pytest.mark.parametrize("text", SENTENCES)
def test_half_characters_are_held_back(text: str) -> None:
    detokenizer = make_detokenizer(BYTE_LEVEL, skip_special_tokens=True)
    for byte in text.encode():
        token = BYTE_LEVEL.raw.encode(text).ids  # the alphabet covers all bytes, so single bytes are tokens
        assert token
        assert "\N{REPLACEMENT CHARACTER}" not in detokenizer.push([byte_token(byte)])
    assert detokenizer.flush() == ""


def byte_token(byte: int) -> int:
    assert BYTE_LEVEL.bytes_of is not None
    return BYTE_LEVEL.bytes_of.index(bytes([byte]))


def test_bytes_that_never_become_text_are_not_held_for_ever() -> None:
    detokenizer = WindowDetokenizer(SENTENCEPIECE, True)
    assert any(detokenizer.push([0xFF]) for _ in range(12))
    assert detokenizer.push([256]).endswith("the")


def test_window_stays_short() -> None:
    detokenizer = WindowDetokenizer(SENTENCEPIECE, True)
    for _ in range(500):
        detokenizer.push([256])
    assert len(detokenizer._tokens) <= 2


def test_special_tokens_are_shown_when_asked() -> None:
    tokens = BYTE_LEVEL.encode("a dog", add_special_tokens=True)
    assert make_detokenizer(BYTE_LEVEL, skip_special_tokens=False).push(tokens) == SPECIAL[0] + "a dog"
    assert make_detokenizer(BYTE_LEVEL, skip_special_tokens=True).push(tokens) == "a dog"
