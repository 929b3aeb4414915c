"""The grammar of durations and sizes."""

import argparse
import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.errors import NOT_JSON
from loadgen.json_text import LARGEST_DEPTH, Decoder, JsonTooDeep, check_depth, decode
from loadgen.quantities import DURATION_UNITS, SIZE_UNITS, Duration, Size, parse_duration, parse_size
from tests.nested import BRACKETS_IN_TEXT, VALUES, arrays, depth, wrapped


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90.0), ("0", 0.0), ("1e-3", 0.001), ("90s", 90.0), ("90 s", 90.0), ("500ms", 0.5), ("35ms", 0.035),
        ("250us", 0.00025), ("250µs", 0.00025), (".5s", 0.5), ("1.5m", 90.0), ("1min", 60.0), ("10m", 600.0),
        ("1h30m", 5400.0), ("1h30min", 5400.0), ("2 min 05 s", 125.0), ("1d", 86_400.0), ("1d12h", 129_600.0),
        ("1m500ms", 60.5),
    ],
)  # fmt: skip
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    "text",
    [
        *("", " ", "s", "soon", "-5s", "+5s", "inf", "nan", "1e99", "5x", "1H", "1h30", "30m1h", "1h1h", "1m1min"),
        *("1,5s", "٣s", "0x10", "1_000", "1.2.3s", ".", "1e999999999s", "9" * 5000 + "s"),
    ],
)
def test_what_is_no_duration_is_told_with_what_is(text: str) -> None:
    with pytest.raises(
        ValueError, match=r"is no duration: write a number and a unit of .*, e\.g\. 500ms, 90s, 1h30m; a "
    ):
        parse_duration(text)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        *(("4096", 4096), ("0", 0), ("7B", 7), ("64kB", 64_000), ("64KB", 64_000), ("2 KiB", 2048)),
        *(("512MiB", 512 << 20), ("1.5GiB", 3 << 29), ("1GiB512MiB", 3 << 29), ("2GB", 2 * 10**9)),
        *(("1TiB", 1 << 40), ("1TB", 10**12)),
    ],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "big", "-1", "2gb", "2Gb", "2G", "MiB", "1MiB1GiB", "inf", "1e30"])
def test_what_is_no_size_is_told_with_what_is(text: str) -> None:
    with pytest.raises(
        ValueError, match=r"is no size: write a number and a unit of .*, e\.g\. 512MiB, 1\.5GiB; a number"
    ):
        parse_size(text)


def test_numbers_without_a_unit_and_sizes_in_another() -> None:
    assert parse_size("2GiB", plain=None, unit="MiB") == 2048
    assert parse_size("512", plain="MiB", unit="MiB") == 512
    for text, unit, words in (("100MB", "MiB", "whole number of MiB"), ("1.5B", "B", "whole number of bytes")):
        with pytest.raises(ValueError, match=words):
            parse_size(text, unit=unit)

    assert parse_duration("30", plain="ms") == 0.03
    assert parse_duration("30s", plain="ms") == 30.0
    for parse in (parse_duration, parse_size):
        with pytest.raises(ValueError, match=r"is no (duration|size): [^;]*$"):
            parse("30", plain=None)


@given(st.integers(0, 10**6), st.sampled_from(sorted(DURATION_UNITS)))
def test_units_are_exact(number: int, unit: str) -> None:
    if number * DURATION_UNITS[unit] <= 10**9:
        assert parse_duration(f"{number}{unit}") == float(number * DURATION_UNITS[unit])


@given(st.text(alphabet="0123456789.e+-hmsdukKMGiB ", max_size=12))
def test_any_text_is_a_finite_quantity_or_a_value_error(text: str) -> None:
    for parse, most in ((parse_duration, 1e9), (parse_size, 1 << 60)):
        told = ""
        try:
            assert 0 <= parse(text) <= most
        except ValueError as error:
            told = str(error)
        assert not told or told.startswith(f"{text!r} is no ")


def test_flags_and_their_help() -> None:
    parser = argparse.ArgumentParser(exit_on_error=False)
    parser.add_argument("--wait", type=Duration(above_zero=True))
    parser.add_argument("--room", type=Size("MiB", above_zero=True))
    found = parser.parse_args(["--wait", "1min", "--room", "1GiB"])
    assert (found.wait, found.room) == (60.0, 1024)
    for flag, text, words in (
        ("--wait", "0s", "no duration above 0"),
        ("--wait", "soon", "'soon' is no duration: write"),
        ("--room", "0", "no size above 0"),
        ("--room", "soon", "'soon' is no size: write"),
    ):
        with pytest.raises(argparse.ArgumentError, match=f"argument {flag}: .*{words}"):
            parser.parse_args([flag, text])

    for units, parse in ((DURATION_UNITS, parse_duration), (SIZE_UNITS, parse_size)):
        with pytest.raises(ValueError, match="is no") as caught:
            parse("?")
        assert all(unit in str(caught.value) for unit in units if unit not in ("µs", "KB"))


class Known(msgspec.Struct):
    """Skips undeclared fields."""

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
