"""Experts come over a channel whole, or the rank's own source has them."""

import threading
from collections.abc import Iterator
from pathlib import Path
from queue import SimpleQueue

import numpy as np
import pytest

from hardware.ub.channel import ChannelReceiver, ChannelSender, ChannelShape
from serving.errors import ExpertError
from serving.experts.core.mover import MoverEvent
from serving.experts.live.record_carrier import CarriedRecords, RecordSender
from serving.experts.live.slot_mover import SlotMover
from serving.model.slots.expert_slots import CopiedSlots, fill_all, make_slots
from serving.values.expert_map import ExpertSlot
from serving.values.expert_moves import ExpertMove, FetchExpert, LoadExpert, MoveFetched, MoveLoaded
from tests.experts.live.ranks_with_slots import IdleRank
from tests.model.slots.experts import MadeExperts

PATIENCE_S = 60.0


class Pair:
    """Rank 1 with experts 4 and 5, and a channel to rank 0, on which a thread answers what it is asked."""

    def __init__(self, slots: CopiedSlots) -> None:
        shape = ChannelShape(lanes=2, slots=2, slot_bytes=1024)
        theirs, own = np.zeros(shape.receiver_bytes, np.uint8).data, np.zeros(shape.sender_bytes, np.uint8).data
        self.slots = slots
        self.sender = RecordSender(slots, ChannelSender(shape, own, theirs), PATIENCE_S)
        self.asked: SimpleQueue[tuple[int, int, int] | None] = SimpleQueue()
        self.receiver = ChannelReceiver(shape, theirs, own)
        self.thread = threading.Thread(target=self._serve)
        self.thread.start()

    def records(self, deadline_s: float = PATIENCE_S, first_event: int = 7) -> CarriedRecords:
        """As rank 0 sees them."""
        layout = self.slots.layout
        return CarriedRecords(layout, self.receiver, lambda *what: self.asked.put(what), deadline_s, first_event)

    def _serve(self) -> None:
        while (what := self.asked.get()) is not None:
            self.sender.send(*what)


@pytest.fixture
def other(shm: Path) -> Iterator[Pair]:
    """The pair; its thread ends with the test."""
    slots = make_slots("copied", MadeExperts(1), 3, shm / "other")
    assert isinstance(slots, CopiedSlots)
    fill_all(slots, [[4, 5, None]])
    pair = Pair(slots)
    yield pair
    pair.asked.put(None)
    pair.thread.join()
    slots.close()


def test_an_expert_moves_over_a_channel(other: Pair, shm: Path) -> None:
    source = MadeExperts(1)
    own = make_slots("copied", source, 2, shm / "own")
    source.asked.clear()
    events: SimpleQueue[MoverEvent] = SimpleQueue()
    mover = SlotMover(0, own, ((None, None),), events.put, 1e12)
    mover.join(IdleRank(own), {1: other.records()})
    moves = [ExpertMove(0, expert, ExpertSlot(0, slot), ExpertSlot(1, slot)) for slot, expert in enumerate((4, 5))]
    for move in moves:
        mover.take(FetchExpert(move))
        mover.take(LoadExpert(move))
        assert [events.get(timeout=60), events.get(timeout=60)] == [MoveFetched(move), MoveLoaded(move)]
    assert [linear.out_features for linear in own.table.gate_up] == [4, 4]
    assert source.asked == []
    mover.close()
    own.close()


def test_what_is_not_sent_or_not_there_is_an_error(other: Pair) -> None:
    records = other.records()
    with pytest.raises(ExpertError, match="holds no expert"):
        other.slots.fill(0, 2, 3, records.record(0, 2))
    with pytest.raises(ExpertError, match="there are 1 layers of 3 slots"):
        records.record(0, 3)
    other.asked.put(None)
    other.thread.join()
    with pytest.raises(ExpertError, match=r"does not send it \(late"):
        other.records(deadline_s=0.01, first_event=100).record(0, 0)
