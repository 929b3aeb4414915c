"""Units: conversion and printing."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hardware.units import GIB, KIB, MIB, TIB, format_bytes, gbps_to_bytes_per_s


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (KIB, "1 KiB"),
        (1536, "1.5 KiB"),
        (128 * MIB, "128 MiB"),
        (64 * GIB, "64 GiB"),
        (3 * TIB, "3 TiB"),
        (-2 * MIB, "-2 MiB"),
    ],
)
def test_bytes_print_in_the_largest_unit(nbytes: int, text: str) -> None:
    assert format_bytes(nbytes) == text


@given(st.integers(min_value=0, max_value=TIB))
def test_printed_bytes_are_within_one_percent(nbytes: int) -> None:
    number, unit = format_bytes(nbytes).split()
    scale = {"B": 1, "KiB": KIB, "MiB": MIB, "GiB": GIB, "TiB": TIB}[unit]
    assert abs(float(number) * scale - nbytes) <= 0.01 * nbytes


def test_link_rates_are_decimal() -> None:
    assert gbps_to_bytes_per_s(400) == 50e9
