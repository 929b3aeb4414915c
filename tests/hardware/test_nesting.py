"""The depth of input that hardware and serving read is limited by us, not by the version of Python."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hardware.nesting import LARGEST_DEPTH, NestedTooDeeply, parse_json, parse_toml
from tests.nested import BRACKETS_IN_TEXT, VALUES, arrays, depth, wrapped


@given(VALUES, st.integers(0, LARGEST_DEPTH + 5), st.booleans())
def test_json_is_read_to_the_limit_and_no_further(value: Any, levels: int, binary: bool) -> None:
    text = wrapped(value, levels)
    if levels + depth(value) > LARGEST_DEPTH:
        with pytest.raises(NestedTooDeeply):
            parse_json(text.encode() if binary else text)
    else:
        assert parse_json(text.encode() if binary else text) == json.loads(text)


@pytest.mark.parametrize("text", BRACKETS_IN_TEXT)
def test_brackets_in_strings_are_no_arrays(text: str) -> None:
    many = [{text: text}, [text]] * 200
    assert parse_json(json.dumps(many)) == many
    with pytest.raises(NestedTooDeeply):
        parse_json(json.dumps([{text: text}])[:-1] + "," + arrays(LARGEST_DEPTH) + "]")


@pytest.mark.parametrize("levels", [LARGEST_DEPTH + 1, 5000, 1_000_000])
@pytest.mark.parametrize("shape", ["closed", "objects", "behind a list"])
def test_too_deep_json_is_refused(levels: int, shape: str) -> None:
    text = {
        "closed": arrays(levels),
        "objects": '{"a":' * levels + "1" + "}" * levels,
        "behind a list": f"[{'[],' * 200}{arrays(levels)}]",
    }[shape]
    for form in (text, text.encode()):
        with pytest.raises(ValueError, match=r"^it is nested more than 128 deep$"):
            parse_json(form)


@pytest.mark.parametrize("levels", [LARGEST_DEPTH + 1, 2000])
@pytest.mark.parametrize("text", ["a = {}", "a = {{x = {}}}", "{dots} = 1", "[{dots}]", "[[{dots}]]"])
def test_too_deep_toml_is_refused(levels: int, text: str) -> None:
    with pytest.raises(NestedTooDeeply):
        parse_toml(text.format(arrays(levels), dots=".".join(["a"] * levels)))


def test_other_toml_is_read() -> None:
    assert parse_toml(f"[a.b]\nc = {arrays(100)}\nd = '[[['") == {
        "a": {"b": {"c": json.loads(arrays(100)), "d": "[[["}}
    }
    with pytest.raises(ValueError, match="Invalid"):
        parse_toml("a = ")


@pytest.mark.parametrize("levels", [LARGEST_DEPTH + 1, 5000, 1_000_000])
@pytest.mark.parametrize("opening", ["[", '{"a":'])
def test_brackets_without_end_are_refused(levels: int, opening: str) -> None:
    with pytest.raises(ValueError, match=r"nested more than 128 deep|Expecting value"):
        parse_json(opening * levels)


@pytest.mark.parametrize("text", ["7", "null", '"a"', "[]", "{}"])
def test_a_value_need_not_hold_others(text: str) -> None:
    assert parse_json(text) == parse_json(text.encode()) == json.loads(text)
