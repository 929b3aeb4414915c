"""Capacity reserved for the remaining output of running sequences: booked, used, released."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.errors import LedgerError
from serving.gateway.core.instances import OutputReserve
from serving.ids import ReplicaId

A, B = ReplicaId("a"), ReplicaId("b")


def test_what_is_expected_shrinks_with_every_token() -> None:
    reserve = OutputReserve(16, most_tokens=100)
    assert [reserve.expected_blocks(n) for n in (-1, 0, 1, 16, 17, 10**9)] == [0, 0, 1, 1, 2, 7]
    reserve.book("x", A, 10**9)
    reserve.book("y", A, 20)
    assert reserve.blocks(A) == 8
    reserve.grew("x", 60)
    assert reserve.blocks(A) == 4
    reserve.grew("x", 60)
    assert reserve.blocks(A) == 2
    reserve.drop("y")
    assert (reserve.blocks(A), reserve.blocks(B)) == (0, 0)
    reserve.grew("nobody", 5)
    reserve.drop("nobody")


Steps = st.lists(
    st.one_of(
        st.tuples(st.just("book"), st.sampled_from("xyz"), st.sampled_from([A, B]), st.integers(-5, 300)),
        st.tuples(st.just("grew"), st.sampled_from("xyz"), st.integers(0, 90)),
        st.tuples(st.just("drop"), st.sampled_from("xyz")),
    ),
    max_size=60,
)


@given(Steps)
def test_the_sums_are_those_of_the_parts(steps: list[tuple]) -> None:
    reserve, model = OutputReserve(16, most_tokens=100), {}
    for kind, name, *rest in steps:
        getattr(reserve, kind)(name, *rest)
        if kind == "book":
            model[name] = (rest[0], min(100, max(0, rest[1])))
        elif kind == "drop":
            model.pop(name, None)
        elif name in model:
            model[name] = (model[name][0], max(0, model[name][1] - rest[0]))
        reserve.check()
        for replica in (A, B):
            assert reserve.blocks(replica) == -(-sum(left for at, left in model.values() if at == replica) // 16)


def test_sums_that_do_not_agree_are_found() -> None:
    reserve = OutputReserve(16)
    reserve.book("x", A, 50)
    reserve._total[A] += 1
    with pytest.raises(LedgerError, match="its parts sum to"):
        reserve.check()
