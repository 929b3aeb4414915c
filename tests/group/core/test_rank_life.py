"""A rank belongs to one shell at a time, and to none for no longer than its lease."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.errors import GroupError, LedgerError
from serving.group.core.rank_life import LEASE_S, RankLife, RankName, check_offers, counted_size
from serving.values.group import RankLease, RankOffer, RankPhase

FIRST = RankLease("abc", 1, 1)


def offers(count: int, layout: str = "x") -> list[RankOffer]:
    return [RankOffer(rank, 100 + rank, "", layout) for rank in range(count)]


def test_a_shell_that_takes_over_keeps_the_former_one_out() -> None:
    life = RankLife(FIRST, 0.0)
    assert life.hold(FIRST, 1.0)
    assert life.hold(RankLease("xyz", 2, 2), 2.0)
    assert not life.hold(FIRST, 3.0), "it only seemed to be dead"
    assert not life.hold(RankLease("late", 3, 2), 3.0), "it asked for the same term, later"
    assert life.lease.shell == "xyz"


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 5)), max_size=30))
def test_no_term_is_ever_held_by_two(asked: list[tuple[str, int]]) -> None:
    life, holders = RankLife(FIRST, 0.0), {1: "abc"}
    for shell, term in asked:
        before = life.lease
        granted = life.hold(RankLease(shell, 0, term), 0.0)
        assert granted == (life.lease.shell == shell and life.lease.term == term)
        assert life.lease.term >= before.term
        assert holders.setdefault(life.lease.term, life.lease.shell) == life.lease.shell


def look_until(life: RankLife, start: float, end: float) -> bool:
    """Poll once a second. Returns: whether the lease had lapsed at the end."""
    lapsed = False
    for second in range(int(start), int(end) + 1):
        lapsed = life.lapsed(float(second))
    return lapsed


def test_a_lease_lapses_unless_it_is_renewed() -> None:
    life = RankLife(FIRST, 0.0)
    assert not look_until(life, 0, LEASE_S)
    assert life.hold(FIRST, LEASE_S)
    assert not look_until(life, LEASE_S, 2 * LEASE_S)
    assert look_until(life, 2 * LEASE_S, 2 * LEASE_S + 1)


def test_a_rank_that_was_frozen_gives_its_shell_the_whole_time_again() -> None:
    life = RankLife(FIRST, 0.0)
    assert not life.lapsed(500.0)
    assert not look_until(life, 501, 500 + LEASE_S)
    assert look_until(life, 501 + LEASE_S, 502 + LEASE_S)


def test_a_life_goes_on_in_order() -> None:
    life = RankLife(FIRST, 0.0)
    with pytest.raises(LedgerError, match="a rank that is loading cannot be serving next"):
        life.enter(RankPhase.SERVING)
    for phase in (RankPhase.OFFERED, RankPhase.SERVING, RankPhase.LEAVING, RankPhase.LEFT):
        life.enter(phase)
    with pytest.raises(LedgerError):
        life.enter(RankPhase.SERVING)


def test_the_size_that_is_shown_is_never_one_that_looks_like_a_loss() -> None:
    told = [(2, 2), (4, 2), (4, 4), (4, 3), (2, 3), (2, 2), (0, 1)]
    shown, size = [], 2
    for wanted, members in told:
        size = counted_size(size, wanted, members)
        shown.append(size)
    assert shown == [2, 2, 4, 4, 2, 2, 2]


def test_offers_that_make_a_group() -> None:
    check_offers(offers(3)[1], 3, offers(3))


@pytest.mark.parametrize(
    ("own", "told", "message"),
    [
        (
            offers(2)[0],
            [*offers(1), RankOffer(2, 1, "", "x")],
            r"a group of at most 2 ranks cannot be formed of \[0, 2\]",
        ),
        (offers(2)[0], [*offers(1), *offers(1)], r"cannot be formed of \[0, 0\]"),
        (RankOffer(0, 999, "", "x"), offers(2), "rank 0 of the group is now another process"),
        (offers(2)[0], [offers(2)[0], offers(2, "y")[1]], "ranks 0 and 1 have different models"),
        (
            RankOffer(0, 5, "", "x", "avx2"),
            [RankOffer(0, 5, "", "x", "avx2"), RankOffer(1, 6, "", "x", "amx")],
            "rank 0 computes with avx2, rank 1 with amx: their results would differ",
        ),
    ],
)
def test_offers_that_make_none(own: RankOffer, told: Sequence[RankOffer], message: str) -> None:
    with pytest.raises(GroupError, match=message):
        check_offers(own, 2, told)


def test_names_that_ray_knows_tell_what_they_are() -> None:
    name = RankName("5e55", "decode#k3jx9a", 11, 2)
    assert name.actor == "cloudmatrix-rank-5e55-decode#k3jx9a.r11@2"
    assert RankName.parse(name.actor) == name
    assert (name.pool, name.replica) == ("decode", "decode#k3jx9a.r11")
    assert RankName.parse("cloudmatrix-membership") is None
