"""Division of NPUs between pools."""

from hypothesis import given
from hypothesis import strategies as st

from serving.scaling.core.budget import NpuRequest, share_out


def request(before: int, want: int, npus: int, least: int = 1, keep: int = 0) -> NpuRequest:
    return NpuRequest(before, want, least, keep, npus)


def test_with_room_for_all_everybody_gets_what_is_wanted() -> None:
    assert share_out([request(1, 5, 4), request(1, 3, 8)], 44) == [5, 3]
    assert share_out([], 0) == []


def test_too_few_npus_are_shared_in_proportion() -> None:
    assert share_out([request(1, 10, 4), request(1, 10, 8)], 60) == [5, 5]
    assert share_out([request(1, 8, 4), request(1, 4, 16)], 48) == [4, 2]


def test_each_has_its_least_first_and_decode_before_prefill() -> None:
    assert share_out([request(4, 9, 4, least=2), request(2, 2, 8)], 24) == [4, 1]
    assert share_out([request(1, 1, 4), request(1, 1, 8)], 9) == [0, 1]
    assert share_out([request(1, 1, 4), request(1, 1, 8)], 7) == [1, 0]


def test_a_pool_that_lost_something_keeps_what_it_has() -> None:
    """Prefill is reduced to its minimum before decode loses its last instance."""
    assert share_out([request(6, 6, 4), request(3, 3, 8)], 28) == [3, 2]
    assert share_out([request(6, 6, 4), request(3, 3, 8, keep=3)], 28) == [1, 3]
    assert share_out([request(6, 6, 4), request(3, 3, 8, keep=3)], 24) == [2, 2]


def test_a_split_that_is_nearly_as_good_stays() -> None:
    assert share_out([request(11, 20, 4), request(9, 20, 4)], 80) == [10, 10]
    assert share_out([request(21, 40, 4), request(19, 40, 4)], 160) == [21, 19]
    assert share_out([request(20, 40, 4), request(19, 40, 4)], 160) == [20, 20], "what is left over goes to the poorer"


def test_one_that_wants_nothing_takes_nothing() -> None:
    assert share_out([request(2, 0, 4, least=0), request(1, 4, 8, least=0)], 16) == [0, 2]


REQUESTS = st.builds(
    lambda before, want, least, keep, npus: NpuRequest(before, want, min(least, want), min(keep, want), npus),
    *(st.integers(0, 12) for _ in range(4)),
    st.integers(1, 16),
)


@given(st.lists(REQUESTS, max_size=3), st.integers(0, 300))
def test_nobody_gets_more_than_wanted_and_all_no_more_than_there_is(requests: list[NpuRequest], npus: int) -> None:
    shares = share_out(requests, npus)
    assert all(0 <= share <= request.want for share, request in zip(shares, requests, strict=True))
    assert sum(share * request.npus for share, request in zip(shares, requests, strict=True)) <= npus
    if sum(request.least * request.npus for request in requests) <= npus:
        assert all(share >= request.least for share, request in zip(shares, requests, strict=True))
    left = npus - sum(share * request.npus for share, request in zip(shares, requests, strict=True))
    assert all(share == request.want or request.npus > left for share, request in zip(shares, requests, strict=True))


@given(st.lists(REQUESTS, min_size=2, max_size=2), st.integers(0, 300))
def test_a_split_once_made_stands(requests: list[NpuRequest], npus: int) -> None:
    def split(befores: list[int]) -> list[int]:
        pairs = zip(befores, requests, strict=True)
        return share_out([NpuRequest(before, w.want, w.least, 0, w.npus) for before, w in pairs], npus)

    first = split([request.before for request in requests])
    assert split(first) == first
