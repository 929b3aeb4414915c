"""Lookup of draft tokens: what it proposes was there before, and how it learns when that is right."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.instance.core.lookup import DraftLookup, MatchCounts, TextIndex

texts = st.lists(st.integers(0, 3), max_size=60)


def learned(text: list[int], most: int = 4, common: MatchCounts | None = None) -> DraftLookup:
    lookup = DraftLookup(most, common or MatchCounts(common=True), 300)
    lookup.learn(text)
    lookup.look()
    return lookup


@given(known=texts, further=st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=4), max_size=12))
def test_a_proposal_followed_the_same_tokens_before(known: list[int], further: list[list[int]]) -> None:
    lookup, text = learned(known), list(known)
    for tokens in ([], *further):
        if tokens:
            lookup.follow(tokens)
            text += tokens
        draft = list(lookup.draft(4))
        assert lookup.known == len(text)
        assert len(lookup.gains) == len(draft)
        assert list(lookup.gains) == sorted(lookup.gains, reverse=True)
        places = [at for at in range(1, len(text)) if text[at - 1] == text[-1]]
        if any(at > 1 and text[at - 2] == text[-2] for at in places):
            assert draft, "the table is large enough for all pairs of this text"
        assert not draft or any(text[at : at + len(draft)] == draft for at in places)


@given(text=texts, cut=st.integers(0, 60))
def test_pieces_give_the_same_index_as_the_whole(text: list[int], cut: int) -> None:
    whole, pieces = TextIndex(60), TextIndex(60)
    whole.extend(text)
    for part in (text[:cut], text[cut:]):
        pieces.extend(part)
    assert pieces.find() == whole.find()


@pytest.mark.parametrize(
    ("text", "draft"),
    [
        ([1, 2, 3, 4, 9, 2, 3, 5, 9, 1, 2, 3], (4, 9, 2, 3)),  # the longest match
        ([1, 2, 3, 4, 9, 1, 2, 3, 5, 9, 1, 2, 3], (5, 9, 1, 2)),  # the latest of equal ones
        ([1, 2, 7, 7, 7, 1, 2], (7, 7, 7, 1)),
        ([5, 5, 5], (5,)),
        ([1, 2, 3, 1], ()),  # one token is no match
        ([], ()),
    ],
)
def test_the_longest_of_the_latest_matches_is_taken(text: list[int], draft: tuple[int, ...]) -> None:
    assert learned(text).draft(4) == draft


def test_a_match_is_followed_until_a_token_differs() -> None:
    lookup = learned([1, 2, 3, 4, 5, 6, 0, 1, 2])
    lookup.follow([3, 4])
    assert lookup.draft(2) == (5, 6)
    lookup.follow([9])
    assert (lookup.draft(2), lookup.gains) == ((), ()), "9 was never there"


def test_a_broken_match_is_resumed_after_another_value() -> None:
    lookup = learned([1, 2, 3, 9, 5, 6, 7, 0, 1, 2])
    lookup.follow([3])
    lookup.follow([8])
    assert lookup.draft(4) == ()
    lookup.follow([5])
    assert lookup.draft(3) == (6, 7, 0)


def test_gains_grow_with_the_match_and_with_what_came_true() -> None:
    lookup = learned([*range(20), 30, *range(3)])
    short = lookup.gains[0]
    lookup.follow(list(range(3, 12)))
    assert lookup.gains[0] > 0.9 > short
    assert lookup.gains[3] == pytest.approx(lookup.gains[0] ** 4, rel=0.1)


def test_what_came_false_is_learned_for_other_sequences_too() -> None:
    common = MatchCounts(common=True)
    liar = learned([1, 2, 3], common=common)
    before = learned([1, 2, 3, 1, 2], common=common).gains[0]
    for number in range(100):
        liar.follow([1, 2, 10 + number])
    assert learned([1, 2, 3, 1, 2], common=common).gains[0] < 0.3 * before
    own = learned([1, 2, 3, 1, 2], common=common)
    for _ in range(9):
        own.follow([3, 1, 2, 3, 1, 2])
    assert own.gains[0] > 0.9


def test_accepted_tokens_are_a_mean_of_the_latest_steps() -> None:
    lookup = learned([1, 2, 3])
    for _ in range(60):
        lookup.on_accepted(2)
        lookup.follow([4, 5, 6])
    assert lookup.accepted == pytest.approx(1.8, rel=0.01)
    for _ in range(30):
        lookup.follow([4])
    assert lookup.accepted < 0.1


def test_a_long_text_keeps_to_its_table() -> None:
    index = TextIndex(1 << 40)
    assert len(index._latest) == 1 << 18
