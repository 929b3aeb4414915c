"""Experts move between ranks while steps run: no token is computed with wrong weights, and every command gets a
response.
"""

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from serving.errors import ExpertError
from serving.group.compute.slot_mover import SlotMover
from serving.group.core.group_map import first_map, group_shape
from serving.group.core.mover import ExpertMover, MoverEvent
from serving.group.core.slot_ledger import MoveRound, SlotLedger, move_rounds, slots_of
from serving.model.slots.expert_slots import CopiedSlots, fill_all, make_slots
from serving.model.slots.slot_region import PeerSlots, SlotsOffer
from serving.values.expert_map import (
    ExpertMap,
    ExpertMove,
    ExpertSlot,
    FetchExpert,
    LoadExpert,
    MoveFailed,
    MoveFetched,
    MoveLoaded,
    MovesEnded,
    MovesStopped,
    SwitchMap,
)
from tests.group.live.ranks_with_slots import IdleRank, RanksWithSlots
from tests.model.slots.experts import MadeExperts

Group = Callable[..., RanksWithSlots]
FAST = 1e12


@pytest.fixture
def groups(shm: Path) -> Iterator[Group]:
    """Factory of groups, which are closed after the test."""
    made = list[RanksWithSlots]()

    def make(first: ExpertMap, **how: Any) -> RanksWithSlots:
        folder = shm / str(len(made))
        folder.mkdir()
        made.append(RanksWithSlots(folder, first, **how))
        return made[-1]

    yield make
    for one in made:
        one.close()


def mover_of(first: ExpertMap, targets: list[list[int | None]], *, deadline: float = 1e12) -> ExpertMover:
    """A mover to other contents of each layer, [layer][slots of all ranks in order]."""
    rounds = list[MoveRound]()
    for layer, held in enumerate(targets):
        now = slots_of(first.placement(layer))
        rounds += move_rounds(layer, now, dict(zip(sorted(now), held, strict=True))) or ()
    loads = {layer: [1.0] * len(first.layers[0].homes) for layer in range(len(first.layers))}
    return ExpertMover(SlotLedger(first), rounds, loads, expert_bytes=6000, bytes_per_s=FAST, deadline=deadline)


@settings(max_examples=settings().max_examples // 10, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_any_moves_between_any_ranks_while_steps_go_on(groups: Group, data: st.DataObject) -> None:
    experts, ranks, redundant = (data.draw(st.integers(1, most)) for most in (6, 3, 2))
    first = first_map(group_shape(experts, ranks, redundant), experts, 2)
    mapped = frozenset(rank for rank in range(ranks) if data.draw(st.booleans()))
    group = groups(first, mapped=mapped)
    spare = sum(first.slots) - experts
    more = st.lists(st.one_of(st.none(), st.integers(0, experts - 1)), min_size=spare, max_size=spare)
    targets = [data.draw(st.permutations([*range(experts), *data.draw(more)])) for _ in range(2)]
    group.run(mover_of(first, targets))
    assert group.ended == [MovesEnded(None)]


def test_an_expert_comes_from_the_peer_that_has_it(groups: Group) -> None:
    first = first_map(group_shape(4, 2, 1), 4)
    group = groups(first)
    group.source.asked.clear()
    group.run(mover_of(first, [[0, 1, 3, 2, 3, 0]]))
    assert group.source.asked == []
    assert [one.map_version for one in group.ranks] == [2, 2]


def test_a_damaged_peer_is_passed_over_for_the_ranks_own_source(
    groups: Group, caplog: pytest.LogCaptureFixture
) -> None:
    first = first_map(group_shape(4, 2, 1), 4)
    group = groups(first)
    slots = group.ranks[0].slots
    assert isinstance(slots, CopiedSlots)
    mover = mover_of(first, [[0, 1, None, 2, 3, 0]])
    record = slots.record(0)
    byte = record[-200]
    group.source.asked.clear()
    orders = mover.start(0.0)
    record[-200] = byte ^ 1
    group.take(orders)
    assert isinstance(group.events.get(timeout=60), MoveFetched)
    record[-200] = byte
    assert group.source.asked == [(0, 0)]
    assert "checksum" in caplog.text


def test_a_move_that_fails_leaves_a_group_that_serves(groups: Group) -> None:
    first = first_map(group_shape(4, 2, 1), 4)
    group = groups(first)

    def broken(layer: int, expert: int) -> None:
        raise ExpertError("the disk is gone")

    group.source.expert = broken  # type: ignore[assignment,method-assign]
    group.ranks[1].mover.join(group.ranks[1], {})
    group.run(mover_of(first, [[0, 1, 3, 2, 3, 0]]))
    (ended,) = group.ended
    assert ended.reason is not None
    assert "expert 0 to rank 1: the disk is gone" in ended.reason
    group.step()


@pytest.fixture
def one_rank(shm: Path) -> Iterator[tuple[SlotMover, CopiedSlots, "SimpleQueue[MoverEvent]"]]:
    """A rank of four slots, the last of which is empty, and a rate of one expert an hour."""
    slots = make_slots("copied", MadeExperts(1), 4, shm / "slots")
    assert isinstance(slots, CopiedSlots)
    fill_all(slots, [held := (0, 1, 2, None)])
    events: SimpleQueue[MoverEvent] = SimpleQueue()
    mover = SlotMover(0, slots, (held,), events.put, 2.0)
    mover.join(IdleRank(slots), {})
    yield mover, slots, events
    mover.close()
    slots.close()


def move(expert: int, slot: int, source: ExpertSlot | None = None, rank: int = 0) -> ExpertMove:
    return ExpertMove(0, expert, ExpertSlot(rank, slot), source)


def test_fetches_that_are_given_up_are_answered_at_once(one_rank: tuple) -> None:
    mover, slots, events = one_rank
    slow, next_ = move(5, 3), move(6, 2)
    for effect in (FetchExpert(slow), FetchExpert(next_), MovesEnded("a rank was lost"), LoadExpert(slow)):
        mover.take(effect)
    assert [events.get(timeout=60) for _ in range(2)] == [
        MoveFailed(slow, "the move was abandoned"),
        MoveFailed(next_, "the move was abandoned"),
    ]
    assert events.get(timeout=60) == MovesStopped(0, ((0, 1, 2, None),))
    assert events.get(timeout=60) == MoveLoaded(slow), "loads without a source are a recovery's, and are not paced"
    assert slots.table.gate_up[3].out_features == 4
    mover.take(MovesEnded(None))
    assert events.get(timeout=60) == MovesStopped(0, ((0, 1, 2, 5),))


def test_the_end_of_moves_says_what_lies_where(one_rank: tuple) -> None:
    """The native step already has the loaded experts, although it has not polled for them."""
    mover, slots, events = one_rank
    busy = IdleRank(slots)
    busy.wake = lambda: None  # type: ignore[method-assign] # it computes all the time
    mover.join(busy, {})
    mover.take(LoadExpert(move(5, 3)))
    mover.take(LoadExpert(move(6, 1, ExpertSlot(1, 0))))
    mover.take(MovesEnded("another shell has taken over"))
    failed, loaded, stopped = (events.get(timeout=60) for _ in range(3))
    assert (type(failed), loaded) == (MoveFailed, MoveLoaded(move(5, 3)))
    assert stopped == MovesStopped(0, ((0, None, 2, 5),))
    assert mover.held == stopped.held
    assert [slots.table.gate_up[slot].out_features for slot in range(4)] == [4, 0, 4, 4]


def test_a_load_is_done_when_the_native_step_knows_of_it(one_rank: tuple) -> None:
    mover, slots, events = one_rank
    woken = threading.Event()
    busy = IdleRank(slots)
    busy.wake = woken.set  # type: ignore[method-assign] # it computes, and publishes when its step is done
    mover.join(busy, {})
    loaded = move(5, 3)
    mover.take(LoadExpert(loaded))
    assert woken.wait(60)
    assert events.empty()
    slots.table.publish()
    assert events.get(timeout=60) == MoveLoaded(loaded)


def test_a_map_that_is_refused_is_never_in_use(one_rank: tuple, caplog: pytest.LogCaptureFixture) -> None:
    mover, _, events = one_rank
    mover.take(SwitchMap(first_map(group_shape(3, 1, 1), 3)))
    mover.take(LoadExpert(move(5, 3)))
    assert isinstance(events.get(timeout=60), MoveLoaded)
    assert "cannot use expert map 1: no group" in caplog.text
    assert events.empty()


def test_a_load_without_its_fetch_fails_and_empties_the_slot(one_rank: tuple) -> None:
    mover, slots, events = one_rank
    mover.take(LoadExpert(move(5, 1, ExpertSlot(1, 0), rank=1)))  # another rank's
    mover.take(LoadExpert(move(5, 1, ExpertSlot(1, 0))))
    failed = events.get(timeout=60)
    assert isinstance(failed, MoveFailed)
    assert ": not fetched" in failed.reason
    slots.table.publish()
    assert slots.table.gate_up[1].out_features == 0
    assert events.empty()


def test_experts_of_a_rank_in_another_process(shm: Path) -> None:
    """They are copied completely or not at all; the memory of a dead rank can still be read."""
    own = make_slots("copied", MadeExperts(1), 2, shm / "own")
    events: SimpleQueue[MoverEvent] = SimpleQueue()
    mover = SlotMover(0, own, ((None, None),), events.put, FAST)
    command = [sys.executable, "-m", "tests.group.live.peer_rank", str(shm / "peer")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        peer = PeerSlots(msgspec.json.decode(process.stdout.readline(), type=SlotsOffer))
        mover.join(IdleRank(own), {1: peer})
        moves = [move(4, 0, ExpertSlot(1, 0)), move(5, 1, ExpertSlot(1, 1))]
        for effect in (FetchExpert(moves[0]), LoadExpert(moves[0])):
            mover.take(effect)
        print("1", file=process.stdin, flush=True)
        process.stdout.readline()
        with pytest.raises(ExpertError, match="slot 1 stays empty: layer 0, expert 5: the checksum"):
            own.fill(0, 1, 5, peer.record(0, 1))
        process.kill()
    for effect in (FetchExpert(moves[0]), FetchExpert(moves[1]), LoadExpert(moves[1])):
        mover.take(effect)
    wanted = [MoveFetched(moves[0]), MoveLoaded(moves[0]), *map(MoveFetched, moves), MoveLoaded(moves[1])]
    assert [events.get(timeout=60) for _ in wanted] == wanted
    assert [own.table.down[slot].out_features for slot in range(2)] == [4, 4]
    mover.close()
    own.close()
