"""XCCL's eight-step send and receive: what each end of a lane does next. Pure; `channel.py` does it on shared memory.

    sender                                          receiver
    1  has the data in its own memory               5  waits for a word of this transfer
    2  copies a chunk into the receiver's ring      6  copies the chunk out of the ring
    3  stores a word for the receiver: chunks sent  7  stores a word for the sender: chunks taken
    4  waits for the word that all were taken       8  is done when the sender has read it

A transfer is cut into chunks, dealt out to lanes in turn. A lane has a ring and two words, one each way; a word is
stored in one piece, after the bytes it describes, and carries epoch, event (the transfer's number) and the count
of chunks. Taken chunks are credit: a ring's slot is only then rewritten, so a transfer may exceed the ring.

Either end may give up at any time and continue with a later event. The sender's first word of an event, with no chunk,
therefore precedes its use of the ring, and the receiver reads the word once more after copying a chunk: if that is of
the same event still, the bytes are, too.

Only tests reach this module for now.
"""

from dataclasses import dataclass, replace
from enum import Enum
from typing import Self

from hardware.errors import SpecError, UbChannelError

EPOCH_BITS, EVENT_BITS, COUNT_BITS = 14, 24, 26
"""Fields of a word, from the highest."""


class ChannelEnding(Enum):
    """Reason of a failed transfer."""

    LATE = "late"
    EPOCH_CHANGED = "epoch changed"
    MISMATCH = "mismatch"


@dataclass(frozen=True, slots=True)
class LaneWord:
    """Contents of a word: so many chunks of this transfer. A word of zeros belongs to none."""

    epoch: int
    event: int
    count: int

    def pack(self) -> int:
        """The word."""
        return (self.epoch << EVENT_BITS | self.event) << COUNT_BITS | self.count

    @classmethod
    def unpack(cls, word: int) -> Self:
        """Contents of a word."""
        high = word >> COUNT_BITS
        return cls(high >> EVENT_BITS, high & (1 << EVENT_BITS) - 1, word & (1 << COUNT_BITS) - 1)


@dataclass(frozen=True, slots=True)
class LaneTransfer:
    """One lane's part of a transfer.

    Attributes:
        epoch: of the group; 1 or more.
        event: number of the transfer, rising within an epoch.
        chunks: that go through this lane.
        slots: of its ring.
    """

    epoch: int
    event: int
    chunks: int
    slots: int

    def __post_init__(self) -> None:
        fits = 0 < self.epoch < 1 << EPOCH_BITS and 0 <= self.event < 1 << EVENT_BITS
        if not fits or not 0 <= self.chunks < 1 << COUNT_BITS or self.slots < 1:
            raise SpecError(f"{self} does not fit into a word of {EPOCH_BITS}, {EVENT_BITS} and {COUNT_BITS} bits")

    def word(self, count: int) -> int:
        """The word for a number of chunks."""
        return LaneWord(self.epoch, self.event, count).pack()

    def count_in(self, word: int) -> int | None:
        """Chunks that the other end's word speaks of; None if it is of an earlier transfer.

        Raises: UbChannelError if it is of a later one, or of more chunks than there are.
        """
        said = LaneWord.unpack(word)
        if (said.epoch, said.event) < (self.epoch, self.event):
            return None
        if said.epoch != self.epoch:
            raise UbChannelError(ChannelEnding.EPOCH_CHANGED.value, f"the other end is in epoch {said.epoch}")
        if said.event != self.event or said.count > self.chunks:
            raise UbChannelError(
                ChannelEnding.MISMATCH.value,
                f"the other end speaks of {said.count} chunks of event {said.event}, this one of {self.chunks} chunks "
                f"of event {self.event}",
            )
        return said.count


class LaneStep(Enum):
    """Next step of an end of a lane."""

    WAIT = "wait"
    COPY = "copy"
    """A chunk, into or out of the ring."""
    STORE = "store"
    """The word for the other end."""
    DONE = "done"


@dataclass(frozen=True, slots=True)
class SendLane:
    """The sender's end.

    Attributes:
        said: chunks that the last word spoke of; None = there was none yet.
        copied: chunks in the ring or taken.
    """

    transfer: LaneTransfer
    said: int | None = None
    copied: int = 0

    def next(self, word: int) -> tuple[LaneStep, Self]:
        """The next step, and this end after it is done.

        Args:
            word: of the receiver, as it is now.
        Raises: UbChannelError if the receiver is at another transfer.
        """
        if self.said != self.copied:
            return LaneStep.STORE, replace(self, said=self.copied)
        taken = self.transfer.count_in(word)
        if self.copied == self.transfer.chunks:
            return (LaneStep.DONE if taken == self.copied else LaneStep.WAIT), self
        if self.copied - (taken or 0) < self.transfer.slots:
            return LaneStep.COPY, replace(self, copied=self.copied + 1)
        return LaneStep.WAIT, self


@dataclass(frozen=True, slots=True)
class ReceiveLane:
    """The receiver's end.

    Attributes:
        said: chunks that the last word spoke of; None = there was none yet.
        copied: chunks that were copied out of the ring.
    """

    transfer: LaneTransfer
    said: int | None = None
    copied: int = 0

    def next(self, word: int) -> tuple[LaneStep, Self]:
        """The next step, and this end after it is done.

        Args:
            word: of the sender, as it is now.
        Raises: UbChannelError if the sender is at another transfer, so that the last copied bytes may belong to it.
        """
        if self.said == self.transfer.chunks:
            return LaneStep.DONE, self
        filled = self.transfer.count_in(word)
        if filled is None:
            return LaneStep.WAIT, self
        if self.copied > (self.said or 0) or self.transfer.chunks == 0:
            return LaneStep.STORE, replace(self, said=self.copied)
        if filled > self.copied:
            return LaneStep.COPY, replace(self, copied=self.copied + 1)
        return LaneStep.WAIT, self
