"""One-time passes."""

import pytest

from serving.scaling.dashboard.once import LIFE_S, OncePasses, issue

TOKEN = "0123456789abcdef"
BEGAN = 1_000_000.0


def test_each_pass_is_admitted_once() -> None:
    passes = OncePasses(TOKEN, BEGAN)
    first, second = issue(TOKEN, BEGAN + 1), issue(TOKEN, BEGAN + 1)
    assert first != second
    assert [passes.admit(one, BEGAN + 2) for one in (first, first, second, second)] == [True, False, True, False]


@pytest.mark.parametrize("part", [0.0, 0.0004, 0.0006, 0.00098])
def test_it_counts_from_the_moment_of_its_issue(part: float) -> None:
    now = BEGAN + 1 + part
    assert OncePasses(TOKEN, BEGAN).admit(issue(TOKEN, now), now)


def test_it_lives_for_minutes() -> None:
    passes = OncePasses(TOKEN, BEGAN)
    assert passes.admit(issue(TOKEN, BEGAN), BEGAN + LIFE_S - 0.01)
    assert not passes.admit(issue(TOKEN, BEGAN), BEGAN + LIFE_S)
    assert not passes.admit(issue(TOKEN, BEGAN + 5), BEGAN + 4), "it is not issued yet"


def test_what_a_predecessor_may_have_admitted_counts_as_used() -> None:
    once = issue(TOKEN, BEGAN)
    assert not OncePasses(TOKEN, BEGAN + 1).admit(once, BEGAN + 2)


def test_used_ones_are_forgotten_when_they_are_too_old_anyway() -> None:
    passes = OncePasses(TOKEN, BEGAN)
    for second in range(5):
        assert passes.admit(issue(TOKEN, BEGAN + second), BEGAN + second)
    assert passes.admit(issue(TOKEN, BEGAN + LIFE_S + 2), BEGAN + LIFE_S + 2)
    assert len(passes._used) == 3


@pytest.mark.parametrize("wrong", ["", ".", "..", "x.y.z", "\udcff", "\N{SNOWMAN}.a.b"])
def test_nonsense_is_none(wrong: str) -> None:
    assert not OncePasses(TOKEN, BEGAN).admit(wrong, BEGAN)


def test_a_changed_one_is_none() -> None:
    passes = OncePasses(TOKEN, BEGAN)
    once = issue(TOKEN, BEGAN)
    issued, salt, mac = once.split(".")
    later = f"{int(issued, 16) + 1:x}"
    for forged in (f"{later}.{salt}.{mac}", f"{issued}.{salt[::-1]}.{mac}", f"{issued}.{salt}.{mac[:-2]}", once[1:]):
        assert not passes.admit(forged, BEGAN + 1)
    assert not passes.admit(issue("another", BEGAN), BEGAN)
    assert passes.admit(once, BEGAN)
