"""Values as people type them."""

import argparse
import math
from collections.abc import Callable

import pytest

from loadgen.cli import values


def test_shares_rates_and_steps() -> None:
    assert values.share("10%") == pytest.approx(0.1)
    assert values.share("0.25") == 0.25
    assert values.rate("inf") == math.inf
    assert values.rate_steps("2:30s,8:1m") == [(2.0, 30.0), (8.0, 60.0)]
    assert values.numbers("4,1,2,2") == [1.0, 2.0, 4.0]
    assert values.percentiles("99.9,50") == [50.0, 99.9]
    assert values.burstiness("inf") == math.inf
    assert values.whole("0") == 0


def test_pairs_and_objects() -> None:
    assert values.key_value("a = b=c") == ("a", "b=c")
    assert values.json_object('{"top_k": 20}') == {"top_k": 20}


@pytest.mark.parametrize(
    ("parse", "text"),
    [
        (values.rate, "0"),
        (values.rate, "nan"),
        (values.positive_float, "inf"),
        (values.burstiness, "0"),
        (values.share, "101%"),
        (values.share, "x"),
        (values.count, "0"),
        (values.count, "1.5"),
        (values.whole, "-1"),
        (values.numbers, ","),
        (values.percentiles, "101"),
        (values.percentiles, ""),
        (values.rate_steps, "2"),
        (values.rate_steps, "2:0"),
        (values.key_value, "novalue"),
        (values.key_value, "=x"),
        (values.json_object, "[1]"),
        (values.json_object, "{"),
    ],
)
def test_mistakes_are_said(parse: Callable[[str], object], text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        parse(text)


def test_a_percentile_that_is_no_number_is_found_wherever_sorting_puts_it() -> None:
    for step in range(1, 20):
        with pytest.raises(argparse.ArgumentTypeError):
            values.percentiles(",".join(map(str, range(0, 100, step))) + ",x")
