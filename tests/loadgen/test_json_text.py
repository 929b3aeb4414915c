"""Depth of what loadgen reads is bounded by loadgen, not by the version of Python."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.errors import NOT_JSON
from loadgen.json_text import LARGEST_DEPTH, Decoder, JsonTooDeep, check_depth, decode
from tests.nested import BRACKETS_IN_TEXT, VALUES, arrays, depth, wrapped


class Known(msgspec.Struct):
    """Skips what it does not declare."""

    a: int


@given(VALUES, st.integers(0, LARGEST_DEPTH + 5), st.booleans())
def test_json_is_read_to_the_limit_and_no_further(value: Any, levels: int, binary: bool) -> None:
    text = wrapped(value, levels)
    if levels + depth(value) > LARGEST_DEPTH:
        with pytest.raises(JsonTooDeep):
            check_depth(text.encode() if binary else text)
    else:
        check_depth(text.encode() if binary else text)


@pytest.mark.parametrize("text", BRACKETS_IN_TEXT)
def test_brackets_in_strings_are_no_arrays(text: str) -> None:
    many = [{text: text}, [text]] * 200
    assert decode(json.dumps(many)) == many
    with pytest.raises(JsonTooDeep):
        decode(json.dumps([{text: text}])[:-1] + "," + arrays(LARGEST_DEPTH) + "]")


@pytest.mark.parametrize("levels", [LARGEST_DEPTH + 1, 5000, 1_000_000])
def test_fields_that_are_skipped_count(levels: int) -> None:
    text = f'{{"a": 1, "b": {arrays(levels)}}}'
    for read in (decode, Decoder(Known).decode):
        for form in (text, text.encode()):
            with pytest.raises(NOT_JSON, match=r"^JSON is nested more than 128 deep$"):
                read(form)
    assert decode('{"a": 1, "b": [[2]]}', Known).a == Decoder(Known).decode(b'{"a": 1}').a == 1


def test_surrogates_are_no_obstacle() -> None:
    with pytest.raises(JsonTooDeep):
        check_depth('["\udcff",' + arrays(LARGEST_DEPTH) + "]")
