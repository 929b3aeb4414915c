"""llguidance through its C functions: equal to its Python classes, mask by mask; and the fallback without them."""

import ctypes
import logging
import random
from collections.abc import Iterator, Sequence
from functools import cache

import numpy as np
import pytest

from serving.errors import GrammarError
from serving.grammar import guidance
from serving.grammar.compile import Grammars
from serving.grammar.guidance import PythonRoute
from serving.grammar.matcher import Matcher
from serving.instance.executors.native_grammar import TextTokens, route_for_steps
from serving.values.sequence import Grammar, GrammarKind
from tests.grammar.storyteller import RECORD, STOP, YES, grammars, tokenizer
from tests.model.native.native_libraries import own_library

GRAMMARS = (
    RECORD,
    Grammar(GrammarKind.JSON_SCHEMA, RECORD.text, free_whitespace=True),
    Grammar(GrammarKind.JSON_SCHEMA, '{"type": "object"}'),
    Grammar(GrammarKind.REGEX, "[a-z]{2,5}(-[0-9]{3}){1,4}"),
    Grammar(GrammarKind.REGEX, "(.|\n){0,60}"),
    Grammar(GrammarKind.LARK, 'start: "yes, please, é" | "no <|end|>"'),
)


@cache
def by_c() -> Grammars:
    own_library()
    return grammars(route_for_steps())


@cache
def by_python() -> Grammars:
    return grammars()


def matcher(source: Grammars, grammar: Grammar) -> Matcher:
    return Matcher(source.fresh(grammar), source.vocabulary.size, (STOP,))


@pytest.mark.parametrize("grammar", GRAMMARS, ids=lambda grammar: grammar.text[:12])
def test_masks_and_forced_tokens_are_the_same(grammar: Grammar) -> None:
    for seed in range(3):
        rng, one, other = random.Random(seed), matcher(by_c(), grammar), matcher(by_python(), grammar)
        for _ in range(120):
            allowed = one.allowed()
            assert (allowed == other.allowed()).all()
            assert one.forced(16) == other.forced(16)
            token = int(rng.choice(np.flatnonzero(allowed)))
            one.take((token,))
            other.take((token,))
            if token == STOP:
                break
        copied = one.copy()
        assert (copied.allowed() == other.allowed()).all()


def test_errors_are_the_same() -> None:
    for grammar in (Grammar(GrammarKind.REGEX, "("), Grammar(GrammarKind.JSON_SCHEMA, '{"$ref": "#/nowhere"}')):
        told = []
        for source in (by_c(), by_python()):
            with pytest.raises(GrammarError) as error:
                source.fresh(grammar)
            told.append(str(error.value))
        assert told[0] == told[1]
    for source in (by_c(), by_python()):
        with pytest.raises(GrammarError):
            matcher(source, YES).take(tokenizer().encode("maybe", add_special_tokens=False))
    with pytest.raises(GrammarError, match="number 0"):
        by_c().fresh(Grammar(GrammarKind.LARK, 'start: "a\0"'))


def test_texts_are_asked_for_once() -> None:
    asked: list[str] = []

    def encode(text: str) -> Sequence[int]:
        asked.append(text)
        return [len(text), 7]

    texts = TextTokens(own_library(), encode)
    tokenize = ctypes.CFUNCTYPE(
        ctypes.c_size_t, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_void_p, ctypes.c_size_t
    )(texts.function)
    for text in ("abc", "é", "abc", "x" * 300, "x" * 300):
        for most in (0, 1, 5):
            found = (ctypes.c_uint32 * 5)()
            assert tokenize(texts.data, text.encode(), len(text.encode()), found, most) == 2
            assert list(found[:2]) == [len(text), 7][:most] + [0] * (2 - min(most, 2))
    assert asked == ["abc", "é", *["x" * 300] * 6], "long ones are not kept"


@pytest.fixture
def nothing_known() -> Iterator[None]:
    guidance.load.cache_clear()
    yield
    guidance.load.cache_clear()


@pytest.mark.usefixtures("nothing_known")
@pytest.mark.parametrize("missing", ["symbol", "file", "version"])
def test_without_the_functions_python_is_asked_and_the_log_says_so_once(
    missing: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    own_library()

    class Other:
        """A library with other functions."""

        def __getattr__(self, name: str) -> object:
            if missing == "symbol":
                raise AttributeError(f"undefined symbol: {name}")
            return lambda *_: b"llguidance@2.0.0"

    def open_library(path: str) -> Other:
        if missing == "file":
            raise OSError("no such file")
        return Other()

    monkeypatch.setattr(ctypes, "CDLL", open_library)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            assert isinstance(route_for_steps(), PythonRoute)
    assert [record.message for record in caplog.records if "no C interface" in record.message] == [
        record.message for record in caplog.records
    ]
    assert len(caplog.records) == 1
