"""Search through all states of the two ends of a lane, which are those of `hardware.ub.eight_step`.

A chunk in the ring is two halves, each stored and read separately, so a chunk can be seen torn. Either end may give up
after any of its actions, and then continues with the next event; a dead end takes no further action.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum, auto

from hardware.errors import UbChannelError
from hardware.ub.eight_step import LaneStep, LaneTransfer, ReceiveLane, SendLane

EPOCH = 1


class Mistake(Enum):
    """An error in the protocol that the search must find."""

    WORD_BEFORE_CHUNK = auto()
    NO_CREDIT = auto()
    NO_FIRST_WORD = auto()
    NO_SECOND_LOOK = auto()
    TAKEN_BEFORE_COPY = auto()


class WordBeforeChunk(SendLane):
    """Publishes a chunk, then copies it."""

    def next(self, word: int) -> tuple[LaneStep, "WordBeforeChunk"]:
        if self.said is not None and self.said > self.copied:
            return LaneStep.COPY, replace(self, copied=self.copied + 1)
        step, after = super().next(word)
        return (LaneStep.STORE, replace(self, said=after.copied)) if step is LaneStep.COPY else (step, after)


class NoCredit(SendLane):
    """Fills the ring without regard to free slots."""

    def next(self, word: int) -> tuple[LaneStep, "NoCredit"]:
        if self.said == self.copied and self.copied < self.transfer.chunks:
            return LaneStep.COPY, replace(self, copied=self.copied + 1)
        return super().next(word)


class NoFirstWord(SendLane):
    """Starts with a chunk."""

    def next(self, word: int) -> tuple[LaneStep, "NoFirstWord"]:
        return super(NoFirstWord, replace(self, said=self.said or 0)).next(word)


class NoSecondLook(ReceiveLane):
    """Accepts the copied data without a second check."""

    def next(self, word: int) -> tuple[LaneStep, "NoSecondLook"]:
        if self.copied > (self.said or 0):
            return LaneStep.STORE, replace(self, said=self.copied)
        return super().next(word)


class TakenBeforeCopy(ReceiveLane):
    """Frees the slot, then copies the chunk."""

    def next(self, word: int) -> tuple[LaneStep, "TakenBeforeCopy"]:
        if self.said is not None and self.said > self.copied:
            return LaneStep.COPY, replace(self, copied=self.copied + 1)
        step, after = super().next(word)
        return (LaneStep.STORE, replace(self, said=after.copied)) if step is LaneStep.COPY else (step, after)


_SENDERS = {
    Mistake.WORD_BEFORE_CHUNK: WordBeforeChunk,
    Mistake.NO_CREDIT: NoCredit,
    Mistake.NO_FIRST_WORD: NoFirstWord,
}
_RECEIVERS = {Mistake.NO_SECOND_LOOK: NoSecondLook, Mistake.TAKEN_BEFORE_COPY: TakenBeforeCopy}


@dataclass(frozen=True, slots=True)
class Setting:
    """Parameters of one search.

    Attributes:
        chunks: of each event, in order.
        slots: of the ring.
    """

    chunks: tuple[int, ...] = (3, 2)
    slots: int = 2
    give_up: bool = False
    mistake: Mistake | None = None


@dataclass(frozen=True, slots=True)
class End:
    """State of one end.

    Attributes:
        event: current event; the number of events = finished.
        half: the first half of a chunk that it has read, or that it has written; None between chunks.
        got: values that the receiver has copied.
    """

    event: int
    lane: SendLane | ReceiveLane | None
    half: int | None = None
    got: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class State:
    """Both words, the ring's halves, both ends, and events that the receiver has received completely."""

    data: int
    ack: int
    ring: tuple[int, ...]
    sender: End
    receiver: End
    whole: frozenset[int] = frozenset()


class ProtocolError(Exception):
    """Raised when the protocol permits a forbidden outcome."""


def value(event: int, chunk: int) -> int:
    """Contents of a chunk's halves."""
    return 10 * event + chunk + 1


def search(setting: Setting) -> tuple[int, frozenset[frozenset[int]]]:
    """Visit every state.

    Returns: number of states, and sets of events that were delivered in states without a further move.
    Raises: ProtocolError if received data differs from sent data, an end reports success wrongly, or an end waits for
        ever.
    """
    first = State(0, 0, (0,) * 2 * setting.slots, _begin(setting, 0, True), _begin(setting, 0, False))
    seen, todo, endings = {first}, [first], set[frozenset[int]]()
    while todo:
        state = todo.pop()
        moves = [*_send(state, setting), *_receive(state, setting)]
        if not moves:
            if not state.sender.lane is state.receiver.lane is None:
                raise ProtocolError(f"an end waits for ever: {state}")
            endings.add(state.whole)
        for after in moves:
            if after not in seen:
                seen.add(after)
                todo.append(after)
    return len(seen), frozenset(endings)


def _begin(setting: Setting, event: int, sends: bool) -> End:
    if event == len(setting.chunks):
        return End(event, None)
    transfer = LaneTransfer(EPOCH, event + 1, setting.chunks[event], setting.slots)
    if sends:
        return End(event, _SENDERS.get(setting.mistake, SendLane)(transfer))  # type: ignore[arg-type]
    return End(event, _RECEIVERS.get(setting.mistake, ReceiveLane)(transfer))  # type: ignore[arg-type]


def _send(state: State, setting: Setting) -> Iterator[State]:
    end = state.sender
    if end.lane is None:
        return
    if setting.give_up:
        yield replace(state, sender=_begin(setting, end.event + 1, True))
    try:
        step, after = end.lane.next(state.ack)
    except UbChannelError:
        yield _failed(state, setting, True)
        return
    chunk = end.lane.copied
    at, moment = 2 * (chunk % setting.slots), value(end.event, chunk)
    match step:
        case LaneStep.COPY if end.half is None:
            yield replace(state, ring=_put(state.ring, at, moment), sender=replace(end, half=moment))
        case LaneStep.COPY:
            yield replace(state, ring=_put(state.ring, at + 1, moment), sender=replace(end, lane=after, half=None))
        case LaneStep.STORE:
            yield replace(state, data=after.transfer.word(after.said or 0), sender=replace(end, lane=after))
        case LaneStep.DONE:
            if end.event not in state.whole:
                raise ProtocolError(f"the sender is told that event {end.event} came over, and it did not")
            yield replace(state, sender=_begin(setting, end.event + 1, True))


def _receive(state: State, setting: Setting) -> Iterator[State]:
    end = state.receiver
    if end.lane is None:
        return
    if setting.give_up:
        yield replace(state, receiver=_begin(setting, end.event + 1, False))
    at = 2 * (end.lane.copied % setting.slots)
    if end.half is not None:
        after = replace(end.lane, copied=end.lane.copied + 1)
        got = end.half if end.half == state.ring[at + 1] else -1
        yield replace(state, receiver=replace(end, lane=after, half=None, got=(*end.got, got)))
        return
    try:
        step, after = end.lane.next(state.data)
    except UbChannelError:
        yield _failed(state, setting, False)
        return
    match step:
        case LaneStep.COPY:
            yield replace(state, receiver=replace(end, half=state.ring[at]))
        case LaneStep.STORE:
            whole = state.whole | {end.event} if after.said == after.transfer.chunks else state.whole
            if whole != state.whole and end.got != _wanted(setting, end.event):
                raise ProtocolError(f"event {end.event} came over as {end.got}")
            word = after.transfer.word(after.said or 0)
            yield replace(state, ack=word, receiver=replace(end, lane=after), whole=whole)
        case LaneStep.DONE:
            yield replace(state, receiver=_begin(setting, end.event + 1, False))


def _failed(state: State, setting: Setting, sends: bool) -> State:
    """An end that learns that the other one is at another event continues with the next event."""
    if not setting.give_up:
        raise ProtocolError(f"an end gives up although nobody did: {state}")
    if sends:
        return replace(state, sender=_begin(setting, state.sender.event + 1, True))
    return replace(state, receiver=_begin(setting, state.receiver.event + 1, False))


def _wanted(setting: Setting, event: int) -> tuple[int, ...]:
    return tuple(value(event, chunk) for chunk in range(setting.chunks[event]))


def _put(values: tuple[int, ...], index: int, one: int) -> tuple[int, ...]:
    return (*values[:index], one, *values[index + 1 :])
