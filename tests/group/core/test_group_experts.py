"""No token is computed with wrong weights, whatever happens to a group; and planted faults are found."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from serving.group.core import group_experts
from serving.group.core.group_map import regroup_map
from serving.group.core.slot_ledger import SlotLedger
from serving.values.expert_map import ExpertHome, ExpertMap, ExpertSlot, LayerMap
from tests.group.core.group_life import EXPERTS, GroupLife

TestGroupLife = GroupLife.TestCase
TestGroupLife.settings = settings(max_examples=settings().max_examples // 2, stateful_step_count=50)

HUNT = settings(
    max_examples=200, stateful_step_count=30, deadline=None, derandomize=True, database=None, phases=[Phase.generate]
)


def is_borrowed(of: ExpertMap, home: ExpertHome) -> bool:
    return home.at.slot >= of.slots[home.at.rank] - EXPERTS


def moved(of: ExpertMap, expert: int, at: ExpertSlot) -> ExpertMap:
    """A map whose first layer sends an expert's rows to another slot."""
    homes = list(of.layers[0].homes)
    homes[expert] = tuple(msgspec.structs.replace(one, at=at) for one in homes[expert][:1])
    return msgspec.structs.replace(of, layers=(LayerMap(tuple(homes), of.layers[0].masked), *of.layers[1:]))


def lost_on_leave(of: ExpertMap) -> ExpertMap:
    """An expert whose rank has left is not borrowed: its rows are sent to a slot with another expert."""
    for expert, homes in enumerate(of.layers[0].homes):
        if is_borrowed(of, homes[0]):
            return moved(of, expert, ExpertSlot(homes[0].at.rank, 0))
    return of


def given_twice(of: ExpertMap) -> ExpertMap:
    """Two experts get the same reserve slot."""
    borrowed = [expert for expert, homes in enumerate(of.layers[0].homes) if is_borrowed(of, homes[0])]
    return moved(of, borrowed[1], of.layers[0].homes[borrowed[0]][0].at) if len(borrowed) > 1 else of


@pytest.mark.parametrize("fault", [lost_on_leave, given_twice])
def test_a_planted_fault_is_found(fault: Callable[[ExpertMap], ExpertMap], monkeypatch: pytest.MonkeyPatch) -> None:
    def faulty(*given: Any) -> ExpertMap:
        return fault(regroup_map(*given))

    monkeypatch.setattr(group_experts, "regroup_map", faulty)
    monkeypatch.setattr(SlotLedger, "_check_holds", lambda *_: None)  # the life alone is to find it
    monkeypatch.setattr(ExpertMap, "check", lambda _: None)
    with pytest.raises(AssertionError, match="ExpertHome"):
        run_state_machine_as_test(GroupLife, settings=HUNT)
