"""Moves between two placements of a layer."""

from hypothesis import given
from hypothesis import strategies as st

from serving.group.core.slot_ledger import Slots, align, move_rounds, slots_of
from serving.values.expert_map import ExpertSlot, Placement
from tests.group.core.strategies import POLICIES, layers


def after(now: Slots, rounds: tuple) -> Slots:
    """Slots after all rounds. Every expert keeps a home in each, and sources hold the fetched experts."""
    now = dict(now)
    experts = {expert for expert in now.values() if expert is not None}
    for one in rounds:
        overwritten = {move.to for move in one.moves}
        assert len(overwritten) == len(one.moves) > 0
        assert experts <= {expert for at, expert in now.items() if at not in overwritten}
        assert all(move.source is None or now[move.source] == move.expert for move in one.moves)
        now.update({move.to: move.expert for move in one.moves})
    return now


def test_a_move_reads_from_a_home_and_goes_where_a_copy_can_go() -> None:
    (one,) = move_rounds(5, slots_of(((0, 1), (2, None))), slots_of(((0, 1), (2, 1)))) or ()
    assert [(move.layer, move.expert, move.to, move.source) for move in one.moves] == [
        (5, 1, ExpertSlot(1, 1), ExpertSlot(0, 1))
    ]


def test_two_experts_change_places_by_way_of_a_spare_slot() -> None:
    now, target = slots_of(((0, None), (1,))), slots_of(((1, None), (0,)))
    rounds = move_rounds(0, now, target) or ()
    assert [[(move.expert, move.to.rank, move.to.slot) for move in one.moves] for one in rounds] == [
        [(0, 0, 1)],
        [(1, 0, 0)],
        [(0, 1, 0)],
    ]


def test_a_circle_without_a_spare_slot_cannot_be_moved() -> None:
    assert move_rounds(0, slots_of(((0,), (1,))), slots_of(((1,), (0,)))) is None


def test_an_expert_that_no_rank_holds_comes_from_outside() -> None:
    (one,) = move_rounds(0, slots_of(((0, None),)), slots_of(((0, 1),))) or ()
    assert one.moves[0].source is None


def test_ranks_of_one_kind_change_parts_rather_than_experts() -> None:
    now: Placement = ((0, 1), (2, 3))
    assert align(slots_of(now), ((3, 2), (1, 0)), [0, 0]) == slots_of(now)
    assert align(slots_of(now), ((2, 0), (1, 3)), [0, 0]) == slots_of(((0, 2), (1, 3)))
    assert align(slots_of(now), ((3, 2), (1, 0)), [0, 1]) != slots_of(now)


@given(layers(), st.sampled_from(sorted(POLICIES)), st.sampled_from(sorted(POLICIES)))
def test_moves_end_at_the_target_and_nobody_is_homeless(layer: tuple, before: str, wanted: str) -> None:
    shape, experts, load = layer
    now = slots_of(POLICIES[before].place(load[:1], experts, shape))
    placed = POLICIES[wanted].place(load[::-1], experts, shape)
    kinds = [(slots, node) for slots, node in zip(shape.slots, shape.nodes, strict=True)]
    target = align(now, placed, [kinds.index(one) for one in kinds])
    held = [{held for at, held in target.items() if at.rank == rank} for rank in range(len(kinds))]
    assert all(any(set(part) - {None} <= one for one in held) for part in placed)
    rounds = move_rounds(0, now, target)
    if rounds is None:
        assert None not in now.values()
        assert len(set(now.values())) == len(now)
        return
    end = after(now, rounds)
    changed = sum(1 for at, expert in target.items() if expert != now[at])
    assert all(end[at] == expert for at, expert in target.items() if expert is not None)
    moves = sum(len(one.moves) for one in rounds)
    assert changed <= moves <= 2 * changed
    if None in now.values() and moves > changed:
        assert moves <= changed + changed // 2


def test_a_lent_slot_is_not_taken_back_before_it_has_served() -> None:
    """Rank 0 lends the slot of expert 1, which has a copy, to break the cycle of 2 and 0; it looped for ever."""
    slots = [ExpertSlot(0, 0), ExpertSlot(0, 1), ExpertSlot(1, 0), ExpertSlot(1, 1)]
    current: Slots = dict(zip(slots, (1, 2, 0, None), strict=True))
    target: Slots = dict(zip(slots, (1, 0, 2, 1), strict=True))
    rounds = move_rounds(0, current, target)
    assert rounds is not None
    assert after(current, rounds) == target
