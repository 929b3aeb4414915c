"""The DP group of a new sequence, compared with a search through all groups."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.errors import LedgerError
from serving.instance.core.dp_balance import DpBalance


@given(st.integers(1, 3), st.lists(st.tuples(st.sampled_from(["add", "leave", "close", "resize"]), st.integers(1, 30))))
def test_it_is_that_of_the_open_groups_while_the_instance_changes(limit: int, moves: list[tuple[str, int]]) -> None:
    balance, groups = DpBalance(4, limit), 4
    inside: list[tuple[int, int]] = []
    for move, number in moves:
        loads = [(balance.blocks[g], balance.sequences[g], g) for g in range(groups)]
        free = [load for load in loads if load[1] < limit]
        chosen = balance.choose().group
        assert chosen == (min(free)[2] if free else min((s, b, g) for b, s, g in loads)[2])
        assert balance.open_blocks == sum(blocks for blocks, _, _ in loads)
        if move == "add":
            balance.add(chosen, number)
            inside.append((chosen, number))
        elif move == "leave" and inside:
            balance.remove(*inside.pop(number % len(inside)))
        elif move == "close":
            groups = min(groups, number)
            balance.close(groups)
        elif move == "resize":
            groups = max([group + 1 for group, _ in inside], default=1) + number % 3
            balance.resize(groups)
            assert len(balance.blocks) == len(balance.sequences) == groups
    assert sum(balance.sequences) == len(inside)


def test_the_reason_says_what_was_compared() -> None:
    balance = DpBalance(2, 1)
    balance.add(0, 5)
    assert "0 KV blocks" in balance.choose().reason
    balance.add(1, 7)
    assert "no group has a free slot" in balance.choose().reason


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(LedgerError, match="cannot decode"):
        DpBalance(0, 1)
    balance = DpBalance(1, 1)
    with pytest.raises(LedgerError, match="more than it had"):
        balance.remove(0, 1)
    balance.add(0, 1)
    with pytest.raises(LedgerError, match="cannot stay open"):
        balance.close(2)
    with pytest.raises(LedgerError, match="still have sequences"):
        balance.resize(0)
