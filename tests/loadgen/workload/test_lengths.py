"""Lengths as people write them, and their clipping."""

import math
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.errors import TraceFormatError, UsageError
from loadgen.workload.distributions import Distribution, Fixed, Histogram, LogNormal, Normal, Uniform
from loadgen.workload.lengths import Lengths, lengths, parse, read_histogram


def rng(seed: int = 1) -> np.random.Generator:
    return np.random.default_rng(seed)


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("128", Fixed(128)), (" 0.5 ", Fixed(0.5)), ("uniform:64-256", Uniform(64, 256)),
        ("uniform:64,256", Uniform(64, 256)), ("normal:512,64", Normal(512, 64)),
        ("lognormal:512,0.8", LogNormal(512, 0.8)),
    ],
)  # fmt: skip
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


def test_one_histogram_in_two_forms_or_in_none(tmp_path: Path) -> None:
    (tmp_path / "a").write_text('{"1": 2.5}')
    (tmp_path / "b").write_text("1 2.5")
    assert read_histogram(tmp_path / "a") == read_histogram(tmp_path / "b") == Histogram((1.0,), (2.5,))

    with pytest.raises(UsageError, match="No such file"):
        parse(f"histogram:{tmp_path / 'none'}")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="cannot read the histogram"):
        parse(f"histogram:{tmp_path / 'binary'}")


@pytest.mark.parametrize(
    ("content", "where"),
    [
        ("10 3\nten 4\n", ":2"), ("1 2 3\n", ":1"), ("1 inf\n", ":1"), ('{"a": 1}', "object"),
        ('{"1": "x"}', "object"), ("{", "object"), ("", "at least one"), ("5 -1", "weights"),
    ],
)  # fmt: skip
def test_a_broken_histogram_names_its_place(tmp_path: Path, content: str, where: str) -> None:
    path = tmp_path / "broken"
    path.write_text(content)
    with pytest.raises(TraceFormatError, match=f"broken.*{where}"):
        read_histogram(path)


MANY = 20_000


def test_uniform_draws_fill_the_range_alike() -> None:
    generator = rng(12)
    counts = Counter(Uniform(3, 6).whole(generator) for _ in range(MANY))
    assert sorted(counts) == [3, 4, 5, 6]
    assert list(counts.values()) == pytest.approx([MANY / 4] * 4, rel=0.06)

    generator = rng(12)
    values = [Uniform(0.2, 0.7).value(generator) for _ in range(2000)]
    assert 0.2 <= min(values) < 0.21
    assert 0.69 < max(values) <= 0.7
    assert Uniform(0.2, 0.7).whole(generator) == 1

    generator = rng(12)
    assert (Fixed(2.5).value(generator), Fixed(2.5).whole(generator)) == (2.5, 3)
    assert generator.random() == rng(12).random()


def test_normal_and_lognormal_have_their_moments() -> None:
    generator = rng(12)
    values = [Normal(50, 5).whole(generator) for _ in range(MANY)]
    assert np.mean(values) == pytest.approx(50, abs=0.2)
    assert np.std(values) == pytest.approx(5, rel=0.03)

    generator = rng(12)
    drawn = [LogNormal(100, 0.8).value(generator) for _ in range(MANY)]
    assert np.median(drawn) == pytest.approx(100, rel=0.03)
    assert np.mean(drawn) == pytest.approx(100 * math.exp(0.32), rel=0.03)
    assert np.std(np.log(drawn)) == pytest.approx(0.8, rel=0.03)
    assert isinstance(LogNormal(100, 0.8).whole(generator), int)


def test_histograms_draw_by_weight_and_seeds_alike() -> None:
    generator = rng(12)
    histogram = Histogram((10, 20, 30, 40), (1, 0, 3, 0))
    counts = Counter(histogram.whole(generator) for _ in range(MANY))
    assert sorted(counts) == [10, 30]
    assert counts[30] / MANY == pytest.approx(0.75, abs=0.01)

    one, other = rng(12), rng(12)
    for kind in (Uniform(1, 9), Normal(5, 1), LogNormal(5, 1), Histogram((1, 2), (1, 1))):
        assert [kind.value(one) for _ in range(5)] == [kind.value(other) for _ in range(5)]


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: Uniform(5, 4), "smaller number first"),
        (lambda: Normal(5, -1), "deviation"),
        (lambda: LogNormal(0, 1), "median"),
        (lambda: LogNormal(1, -1), "sigma"),
        (lambda: Histogram((), ()), "weights"),
        (lambda: Histogram((1,), (1, 2)), "weights"),
        (lambda: Histogram((1,), (0,)), "weights"),
        (lambda: Histogram((1, 2), (1, -1)), "weights"),
        (lambda: Histogram((1,), (math.inf,)), "weights"),
    ],
)
def test_impossible_parameters_are_refused(make: Callable[[], Distribution], match: str) -> None:
    with pytest.raises(UsageError, match=match):
        make()
