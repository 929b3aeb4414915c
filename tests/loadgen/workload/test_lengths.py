"""Lengths as people write them, and their clipping."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.errors import TraceFormatError, UsageError
from loadgen.workload.distributions import Distribution, Fixed, Histogram, LogNormal, Normal, Uniform
from loadgen.workload.lengths import Lengths, lengths, parse, read_histogram


def rng() -> np.random.Generator:
    return np.random.default_rng(1)


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("128", Fixed(128)),
        (" 0.5 ", Fixed(0.5)),
        ("uniform:64-256", Uniform(64, 256)),
        ("uniform:64,256", Uniform(64, 256)),
        ("normal:512,64", Normal(512, 64)),
        ("lognormal:512,0.8", LogNormal(512, 0.8)),
    ],
)
def test_every_form_is_understood(text: str, meant: Distribution) -> None:
    assert parse(text) == meant


@pytest.mark.parametrize(
    "text", ["", "many", "-5", "nan", "inf", "uniform:64", "uniform:-4-8", "normal:1,2,3", "lognormal:x,y", "gauss:1,2"]
)
def test_anything_else_is_refused_with_the_forms(text: str) -> None:
    with pytest.raises(UsageError, match=r"lognormal:512,0\.8"):
        parse(text)


def test_range_ratio_is_that_of_vllm() -> None:
    drawn = lengths("10", range_ratio=0.25)
    assert drawn.distribution == Uniform(7, 13)
    generator = rng()
    assert {drawn.draw(generator) for _ in range(500)} == set(range(7, 14))


def test_range_ratio_needs_a_plain_length() -> None:
    with pytest.raises(UsageError, match="plain length"):
        lengths("normal:5,1", range_ratio=0.1)


@given(st.floats(0, 1e6), st.integers(1, 500), st.one_of(st.none(), st.integers(1, 500)))
def test_lengths_stay_within_every_limit(mean: float, most: int, limit: int | None) -> None:
    drawn = Lengths(Normal(mean, 100), most).draw(rng(), limit)
    assert 1 <= drawn <= min(most, limit or most)


def test_a_limit_for_one_draw_leaves_the_others_as_they_were() -> None:
    free, limited = rng(), rng()
    kind = lengths("lognormal:100,1")
    expected = [kind.draw(free) for _ in range(20)]
    drawn = [kind.draw(limited, 50 if index % 2 else None) for index in range(20)]
    assert drawn == [min(value, 50) if index % 2 else value for index, value in enumerate(expected)]


@pytest.mark.parametrize(
    "content", ['{"10": 3, "20": 1}', "# length weight\n10 3\n\n20,1\n", "10\n10\n10\n20\n", "10, 3\n20 , 1"]
)
def test_histograms_are_read_from_objects_and_lines(tmp_path: Path, content: str) -> None:
    path = tmp_path / "lengths"
    path.write_text(content)
    generator = rng()
    kind = parse(f"histogram:{path}")
    drawn = [kind.whole(generator) for _ in range(4000)]
    assert set(drawn) == {10, 20}
    assert drawn.count(10) / 4000 == pytest.approx(0.75, abs=0.03)


def test_one_histogram_in_two_forms_is_the_same(tmp_path: Path) -> None:
    (tmp_path / "a").write_text('{"1": 2.5}')
    (tmp_path / "b").write_text("1 2.5")
    assert read_histogram(tmp_path / "a") == read_histogram(tmp_path / "b") == Histogram((1.0,), (2.5,))


@pytest.mark.parametrize(
    ("content", "where"),
    [
        ("10 3\nten 4\n", ":2"),
        ("1 2 3\n", ":1"),
        ("1 inf\n", ":1"),
        ('{"a": 1}', "object"),
        ('{"1": "x"}', "object"),
        ("{", "object"),
        ("", "at least one"),
        ("5 -1", "weights"),
    ],
)
def test_a_broken_histogram_names_its_place(tmp_path: Path, content: str, where: str) -> None:
    path = tmp_path / "broken"
    path.write_text(content)
    with pytest.raises(TraceFormatError, match=f"broken.*{where}"):
        read_histogram(path)


def test_a_histogram_that_cannot_be_opened(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file"):
        parse(f"histogram:{tmp_path / 'none'}")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="cannot read the histogram"):
        parse(f"histogram:{tmp_path / 'binary'}")
