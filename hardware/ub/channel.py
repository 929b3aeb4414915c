"""Channel between two ranks on shared memory: the eight-step protocol, with several lanes, waiting or not.

    the receiver's memory    [lane] the sender's word, a cache line each; then [lane] a ring of slots
    the sender's memory      [lane] the receiver's word, a cache line each

A transfer can be blocking (`send`, `receive`), or started and advanced in steps (`sending`, `receiving`). A
channel has one transfer at a time at each end, and one thread. Chunks are copied without the interpreter's lock. On
processors that reorder stores a chunk may be seen torn all the same: what must be whole carries a checksum.

Only tests reach this module for now.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hardware.errors import SpecError, UbChannelError, UbRangeError
from hardware.ub.copy import as_bytes
from hardware.ub.eight_step import ChannelEnding, LaneStep, LaneTransfer, LaneWord, ReceiveLane, SendLane
from hardware.ub.region import round_up

LINE = 64
_LOOKS = 200
"""Unsuccessful polls before a wait starts to sleep: some 100 µs."""
_SHORTEST_S, _LONGEST_S = 50e-6, 1e-3

Pace = Callable[[int], None]
"""Called with the bytes of each chunk that was copied; may wait, or raise to give up."""

Bytes = npt.NDArray[np.uint8]
Words = npt.NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class ChannelShape:
    """Sizes of a channel; both ends must have the same.

    Attributes:
        lanes: that a transfer is dealt out to.
        slots: of a lane's ring.
        slot_bytes: of a chunk, a multiple of 64.

    Raises: SpecError for sizes that cannot be.
    """

    lanes: int = 2
    slots: int = 4
    slot_bytes: int = 256 << 10

    def __post_init__(self) -> None:
        if min(self.lanes, self.slots, self.slot_bytes) < 1 or self.slot_bytes % LINE:
            raise SpecError(f"{self} cannot be a channel: sizes above zero, slots of a multiple of {LINE} bytes")

    @property
    def sender_bytes(self) -> int:
        """Memory that the sender has for it."""
        return self.lanes * LINE

    @property
    def receiver_bytes(self) -> int:
        """Memory that the receiver has for it."""
        return self.lanes * (LINE + self.slots * self.slot_bytes)

    def chunks(self, nbytes: int, lane: int) -> int:
        """Chunks of a transfer that go through a lane."""
        every = round_up(nbytes, self.slot_bytes) // self.slot_bytes
        return (every - lane + self.lanes - 1) // self.lanes


class _Transfer:
    """One end of a transfer: its lanes' ends, its bytes, and the memory between."""

    def __init__(
        self,
        shape: ChannelShape,
        lanes: list[SendLane] | list[ReceiveLane],
        data: Bytes,
        words: tuple[Words, Words],
        rings: Bytes,
        pace: Pace | None,
    ) -> None:
        self._shape, self._data, self._rings, self._pace = shape, data, rings, pace
        self._lanes: list[SendLane | ReceiveLane] = [*lanes]
        self._seen, self._said = words

    def advance(self) -> bool | None:
        """Do one thing in each lane that need not wait.

        Returns: True once all is done; None if every lane waits.
        Raises: UbChannelError if the other end is at another transfer; what the pace raises. The transfer has failed
            then.
        """
        steps = [self._advance(number) for number in range(len(self._lanes))]
        if all(step is LaneStep.DONE for step in steps):
            return True
        return None if all(step in (LaneStep.WAIT, LaneStep.DONE) for step in steps) else False

    def _advance(self, number: int) -> LaneStep:
        lane = self._lanes[number]
        step, after = lane.next(int(self._seen[number]))
        if step is LaneStep.COPY:
            self._copy(number, lane)
        elif step is LaneStep.STORE:
            self._said[number] = after.transfer.word(after.said or 0)
        self._lanes[number] = after
        return step

    def _copy(self, number: int, lane: SendLane | ReceiveLane) -> None:
        shape, chunk = self._shape, lane.copied
        start = (chunk * shape.lanes + number) * shape.slot_bytes
        data = self._data[start : start + shape.slot_bytes]
        at = (number * shape.slots + chunk % shape.slots) * shape.slot_bytes
        ring = self._rings[at : at + len(data)]
        if isinstance(lane, SendLane):
            np.copyto(ring, data)
        else:
            np.copyto(data, ring)
        if self._pace is not None:
            self._pace(len(data))

    def finish(self, deadline_s: float) -> None:
        """Wait until it is done.

        Raises: UbChannelError, `late` after that time.
        """
        end, idle = time.monotonic() + deadline_s, 0
        while (done := self.advance()) is not True:
            idle = 0 if done is False else idle + 1
            if idle > _LOOKS:
                if time.monotonic() > end:
                    raise UbChannelError(ChannelEnding.LATE.value, f"the other end did not come within {deadline_s} s")
                time.sleep(min(_LONGEST_S, _SHORTEST_S * (idle - _LOOKS)))


class ChannelSender:
    """The sender's end.

    Args:
        own: `sender_bytes` of this rank's memory.
        theirs: `receiver_bytes` of the receiver's.
        epoch: of the group; a channel of a later one may use the same memory.
    Raises: UbRangeError if the memory is of another size.
    """

    def __init__(self, shape: ChannelShape, own: memoryview, theirs: memoryview, epoch: int = 1) -> None:
        self._shape, self._epoch = shape, epoch
        self._acks = _words(own, shape.sender_bytes, shape)
        self._words, self._rings = _receiver_memory(theirs, shape)

    def sending(self, event: int, data: memoryview, pace: Pace | None = None) -> _Transfer:
        """Start a send.

        Args:
            event: later than all before it in this epoch.
        Raises: SpecError if it is not.
        """
        lanes = [SendLane(one) for one in _transfers(self._shape, self._epoch, event, data, self._words)]
        return _Transfer(self._shape, lanes, as_bytes(data), (self._acks, self._words), self._rings, pace)

    def send(self, event: int, data: memoryview, deadline_s: float, pace: Pace | None = None) -> None:
        """Send; on return the receiver has all.

        Raises: UbChannelError.
        """
        self.sending(event, data, pace).finish(deadline_s)


class ChannelReceiver:
    """The receiver's end; arguments mirror the sender's."""

    def __init__(self, shape: ChannelShape, own: memoryview, theirs: memoryview, epoch: int = 1) -> None:
        self._shape, self._epoch = shape, epoch
        self._acks = _words(theirs, shape.sender_bytes, shape)
        self._words, self._rings = _receiver_memory(own, shape)

    def receiving(self, event: int, target: memoryview, pace: Pace | None = None) -> _Transfer:
        """Start a receive.

        Args:
            event: later than all before it in this epoch.
            target: writable, as long as what is sent.
        Raises: SpecError if the event is not.
        """
        lanes = [ReceiveLane(one) for one in _transfers(self._shape, self._epoch, event, target, self._acks)]
        return _Transfer(self._shape, lanes, as_bytes(target), (self._words, self._acks), self._rings, pace)

    def receive(self, event: int, target: memoryview, deadline_s: float, pace: Pace | None = None) -> None:
        """Receive; on return the target holds all.

        Raises: UbChannelError; the target's content is then of no use.
        """
        self.receiving(event, target, pace).finish(deadline_s)


def _transfers(shape: ChannelShape, epoch: int, event: int, data: memoryview, said: Words) -> list[LaneTransfer]:
    """Each lane's part. Raises: SpecError if this end has already sent a word of this event or a later one."""
    found = [LaneTransfer(epoch, event, shape.chunks(data.nbytes, lane), shape.slots) for lane in range(shape.lanes)]
    last = LaneWord.unpack(int(said.max()))
    if last.epoch and (last.epoch, last.event) >= (epoch, event):
        raise SpecError(f"event {event} of epoch {epoch} comes after event {last.event} of epoch {last.epoch}")
    return found


def _receiver_memory(memory: memoryview, shape: ChannelShape) -> tuple[Words, Bytes]:
    return _words(memory, shape.receiver_bytes, shape), as_bytes(memory)[shape.lanes * LINE :]


def _words(memory: memoryview, nbytes: int, shape: ChannelShape) -> Words:
    if memory.nbytes != nbytes:
        raise UbRangeError(f"{memory.nbytes} bytes for a channel's end that takes {nbytes}")
    return as_bytes(memory)[: shape.lanes * LINE].view(np.uint64)[:: LINE // 8]
