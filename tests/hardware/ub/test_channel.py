"""Channels carry bytes of any size between two ends, threads or processes, and end when the other end is absent."""

import os
import random
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hardware.errors import SpecError, UbChannelError, UbRangeError
from hardware.ub.channel import ChannelReceiver, ChannelSender, ChannelShape
from hardware.ub.segment import UbSegment
from hardware.units import MIB
from tests.hardware.ub.processes import Processes

SMALL = ChannelShape(lanes=2, slots=2, slot_bytes=64)
PATIENCE_S = 60.0


def pair(shape: ChannelShape, epochs: tuple[int, int] = (1, 1)) -> tuple[ChannelSender, ChannelReceiver]:
    """Both ends on memory of this process."""
    theirs, own = np.zeros(shape.receiver_bytes, np.uint8).data, np.zeros(shape.sender_bytes, np.uint8).data
    return ChannelSender(shape, own, theirs, epochs[0]), ChannelReceiver(shape, theirs, own, epochs[1])


@given(st.integers(1, 4), st.integers(1, 3), st.lists(st.integers(0, 1000), max_size=4), st.randoms())
def test_transfers_of_any_size_in_any_order_of_turns(
    lanes: int, slots: int, sizes: list[int], turns: random.Random
) -> None:
    sender, receiver = pair(ChannelShape(lanes, slots, 64))
    for event, nbytes in enumerate(sizes):
        data, target = turns.randbytes(nbytes), memoryview(bytearray(nbytes))
        ends = [sender.sending(event, memoryview(data)), receiver.receiving(event, target)]
        done = [False, False]
        while not all(done):
            one = turns.randrange(2)
            done[one] = done[one] or ends[one].advance() is True
        assert bytes(target) == data


def test_two_threads_and_a_pace() -> None:
    sender, receiver = pair(SMALL)
    data, target, told = os.urandom(5000), memoryview(bytearray(5000)), list[int]()
    thread = threading.Thread(target=lambda: sender.send(9, memoryview(data), PATIENCE_S))
    thread.start()
    receiver.receive(9, target, PATIENCE_S, told.append)
    thread.join()
    assert bytes(target) == data
    assert sum(told) == 5000


def test_an_end_that_is_alone_is_late_and_a_pace_may_give_up() -> None:
    sender, receiver = pair(SMALL)
    for wait in (
        lambda: sender.send(1, memoryview(bytes(1000)), 0.01),
        lambda: receiver.receive(2, memoryview(bytearray(10)), 0.01),
    ):
        with pytest.raises(UbChannelError) as error:
            wait()
        assert error.value.ending == "late"
    sender, _ = pair(SMALL)

    def stop(nbytes: int) -> None:
        raise InterruptedError

    with pytest.raises(InterruptedError):
        sender.send(1, memoryview(bytes(100)), PATIENCE_S, stop)


def test_after_a_transfer_that_failed_the_next_one_comes_over_and_a_later_epoch_ends_one() -> None:
    sender, receiver = pair(SMALL)
    with pytest.raises(UbChannelError):
        sender.send(1, memoryview(b"x" * 1000), 0.01)
    half = receiver.receiving(1, memoryview(bytearray(1000)))
    half.advance()
    sending = sender.sending(2, memoryview(b"y" * 100))
    sending.advance()
    with pytest.raises(UbChannelError) as error:
        half.advance()
    assert error.value.ending == "mismatch"
    target = memoryview(bytearray(100))
    receiving = receiver.receiving(2, target)
    while not all([sending.advance(), receiving.advance()]):
        pass
    assert bytes(target) == b"y" * 100
    shape = SMALL
    theirs, own = np.zeros(shape.receiver_bytes, np.uint8).data, np.zeros(shape.sender_bytes, np.uint8).data
    receiving = ChannelReceiver(shape, theirs, own, 1).receiving(5, memoryview(bytearray(10)))
    ChannelSender(shape, own, theirs, 2).sending(0, memoryview(bytes(10))).advance()
    with pytest.raises(UbChannelError) as error:
        receiving.advance()
    assert error.value.ending == "epoch changed"


def test_an_event_is_never_used_again() -> None:
    """The words of the first use would be read as those of the second."""
    sender, receiver = pair(SMALL)
    ends = sender.sending(4, memoryview(b"abc")), receiver.receiving(4, memoryview(bytearray(3)))
    while not all([end.advance() for end in ends]):
        pass
    for again in (4, 3):
        with pytest.raises(SpecError, match="comes after event 4"):
            sender.sending(again, memoryview(b"def"))
        with pytest.raises(SpecError, match="comes after event 4"):
            receiver.receiving(again, memoryview(bytearray(3)))


def test_two_processes(shm: Path, processes: Processes) -> None:
    """Transfers larger than the ring, and empty ones, through shared memory; then the sender is dead."""
    shape = ChannelShape(lanes=2, slots=2, slot_bytes=4096)
    sizes = [100_000, 0, 1, 4096, 70_000]
    with UbSegment.create(shm / "ub", MIB) as segment:
        own, theirs = segment.allocate(shape.receiver_bytes, "own"), segment.allocate(shape.sender_bytes, "theirs")
        ends = segment.view(own), segment.view(theirs)
        child = processes.start(
            "send",
            path=str(segment.path),
            own=theirs.offset,
            theirs=own.offset,
            shape=[shape.lanes, shape.slots, shape.slot_bytes],
            sizes=sizes,
            patience_s=PATIENCE_S,
        )
        receiver = ChannelReceiver(shape, *ends)
        for event, nbytes in enumerate(sizes):
            target = memoryview(bytearray(nbytes))
            receiver.receive(event, target, PATIENCE_S)
            assert bytes(target) == random.Random(event).randbytes(nbytes)
        assert processes.result(child) == {"sent": len(sizes)}
        processes.kill(child)
        with pytest.raises(UbChannelError, match="late"):
            receiver.receive(len(sizes), memoryview(bytearray(9)), 0.01)


def test_memory_and_sizes_that_cannot_be() -> None:
    with pytest.raises(UbRangeError, match="takes 128"):
        ChannelSender(SMALL, memoryview(bytearray(64)), memoryview(bytearray(SMALL.receiver_bytes)))
    for bad in ({"lanes": 0}, {"slots": 0}, {"slot_bytes": 100}):
        with pytest.raises(SpecError):
            ChannelShape(**bad)
