"""Pure model of a carrier: a session here, an expert rank on another host, and a search through every order.

Rows, results and words of `session_model.py`, but each end writes into its own memory only, and frames carry what was
written to the other. Between the ends lie two streams of frames; the connection may be cut at any moment. The shell may
raise the epoch at any moment: with the expert rank, since another rank has died, or since it does not know of the cut
yet; and without it, when its carrier is closed.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, auto
from typing import NamedTuple

LAST_EPOCH = 3
ROUNDS = 2


class CarrierMistake(Enum):
    """A way to get the carrier wrong."""

    HELLO_AT_ONCE = auto()  # although an ask of the old epoch is just being sent
    ASK_OF_ANY_EPOCH = auto()  # is sent
    ASK_BEFORE_ROWS = auto()
    ANSWER_BEFORE_RESULTS = auto()
    LOSS_REPORTED_ONCE = auto()
    OPEN_WHEN_LOST = auto()  # what arrives after the loss is stored
    FRAMES_OVERTAKE = auto()
    FRAMES_REPEAT = auto()


class CarrierError(Exception):
    """The protocol let something happen that must not."""


@dataclass(frozen=True, slots=True)
class CarrierSetting:
    """Setting of one search. `cut`: the connection may end. `raises`: the epoch may be raised without a loss."""

    cut: bool = True
    raises: bool = True
    mistake: CarrierMistake | None = None


class Frame(NamedTuple):
    """`ask` with rows, or `answer` with results; a hello is an answer of round 0."""

    kind: str
    word: int
    payload: int


class Here(NamedTuple):
    """The session's rank, and its end of the carrier. A word is epoch * 10 + round; so is what rows were staged for.

    Attributes:
        raised: epoch that the shell has named; alone: since which the other is no member.
        lost: the carrier has seen the end of the connection; reported: so the rank's window says.
        sending: ask that the carrier is just reading rows for. held: hello to be posted behind it.
        forgotten: 1 = the shell has cleared the report, and is about to raise the epoch.
    """

    epoch: int = 1
    raised: int = 1
    alone: int = 99
    place: int = 0
    rows: int = 0
    results: int = 0
    ask: int = 0
    asked: int = 0
    answer: int = 0
    hello: int = 0
    lost: bool = False
    reported: bool = False
    sending: int = 0
    held: int = 0
    forgotten: int = 0


class There(NamedTuple):
    """The expert rank, and its end: a mirror of the session's window, and what was sent last.

    Attributes:
        serving: ask whose rows it computes.
    """

    epoch: int = 1
    raised: int = 1
    rows: int = 0
    results: int = 0
    ask: int = 0
    answer: int = 10
    taken: int = 0
    sent: int = 0
    serving: int = 0


class State(NamedTuple):
    """Everything. `out`, `back`: frames on their way."""

    here: Here = Here()
    there: There = There()
    out: tuple[Frame, ...] = ()
    back: tuple[Frame, ...] = ()
    is_cut: bool = False


PROGRAM = [
    ("await", 0),
    *((op, r) for r in range(1, ROUNDS + 1) for op in ("block", "ask", "await")),
    ("block", ROUNDS + 1),
]
END = len(PROGRAM)


def search(setting: CarrierSetting) -> tuple[int, frozenset[int]]:
    """Visit every state.

    Returns: number of states; epochs in which the session ended.
    Raises: CarrierError if memory is read that is being written, or of another round; or the session waits for ever.
    """
    seen, endings = {State()}, set[int]()
    todo = list(seen)
    while todo:
        state = todo.pop()
        moves = list(_moves(setting, state))
        if not moves:
            if state.here.place != END:
                raise CarrierError(f"the session waits for ever: {state.here}")
            endings.add(state.here.epoch)
        new = set(moves) - seen
        seen |= new
        todo += new
    return len(seen), frozenset(endings)


def _moves(setting: CarrierSetting, state: State) -> Iterator[State]:
    if state.here.place != END:
        yield from _session(state)
        yield from _shell(setting, state)
    yield from _sender(setting, state)
    yield from _receiver(setting, state)
    if not state.is_cut:
        yield from _far_end(setting, state)
        if setting.cut:
            yield state._replace(is_cut=True)
    yield from _expert(state)


def _session(state: State) -> Iterator[State]:
    here = state.here
    op, round_ = PROGRAM[here.place]
    alone = here.epoch >= here.alone
    if op == "await" and not alone:
        if here.answer == here.epoch * 10 + round_:
            yield _at(state, here._replace(place=here.place + 1))
        elif here.raised > here.epoch and not here.forgotten:
            yield _at(state, here._replace(epoch=here.raised, place=0))
        return
    if op == "block" and not alone:
        if round_ > 1 and here.results != here.epoch * 10 + round_ - 1:
            raise CarrierError(f"results {here.results} in round {round_} of epoch {here.epoch}")
        here = here._replace(rows=here.epoch * 10 + round_)
    elif op == "block":
        here = here._replace(rows=here.epoch * 10 + round_, results=0)
    elif op == "ask" and not alone:
        here = here._replace(ask=here.epoch * 10 + round_)
    yield _at(state, here._replace(place=here.place + 1))


def _at(state: State, here: Here) -> State:
    if _in_block(here) and here.sending:
        raise CarrierError("rows are staged while the carrier reads them")
    return state._replace(here=here)


def _in_block(here: Here) -> bool:
    return here.place != END and PROGRAM[here.place][0] == "block"


def _shell(setting: CarrierSetting, state: State) -> Iterator[State]:
    """An epoch begins in two stores, of which the first takes reports of losses back."""
    here, there = state.here, state.there
    if here.forgotten:
        yield state._replace(here=here._replace(forgotten=0))
    elif here.raised < LAST_EPOCH and here.raised == here.epoch:
        if here.reported and not here.sending:  # its carrier is closed
            yield state._replace(here=here._replace(raised=LAST_EPOCH, alone=LAST_EPOCH, reported=False, forgotten=1))
        if setting.raises and here.raised == 1:
            yield state._replace(here=here._replace(raised=2, reported=False, forgotten=1))
    if there.raised < min(here.raised, here.alone - 1):
        yield state._replace(there=there._replace(raised=here.raised))


def _sender(setting: CarrierSetting, state: State) -> Iterator[State]:
    here = state.here
    if here.sending:
        out = state.out if state.is_cut else (*state.out, Frame("ask", here.sending, here.rows))
        answer = here.held or here.answer
        hello = here.held or here.hello
        yield state._replace(here=here._replace(sending=0, held=0, answer=answer, hello=hello), out=out)
    elif here.ask != here.asked and not here.lost:
        if here.ask // 10 == here.hello // 10 or setting.mistake is CarrierMistake.ASK_OF_ANY_EPOCH:
            if _in_block(here):
                raise CarrierError("the carrier reads rows while they are staged")
            yield state._replace(here=here._replace(sending=here.ask, asked=here.ask))


def _receiver(setting: CarrierSetting, state: State) -> Iterator[State]:
    here, mistake = state.here, setting.mistake
    if here.lost and not here.reported and mistake is not CarrierMistake.LOSS_REPORTED_ONCE and here.epoch < here.alone:
        yield state._replace(here=here._replace(reported=True))
    if state.is_cut and not here.lost:
        yield state._replace(here=here._replace(lost=True, reported=True))
    if here.lost and mistake is not CarrierMistake.OPEN_WHEN_LOST:
        return
    for number, frame in _arriving(setting, state.back):
        back = state.back[:number] + state.back[number + 1 :]
        if frame.word % 10 == 0:
            if here.sending and mistake is not CarrierMistake.HELLO_AT_ONCE:
                yield state._replace(here=here._replace(held=frame.word), back=back)
            else:
                yield state._replace(here=here._replace(hello=frame.word, answer=frame.word), back=back)
            continue
        if _in_block(here):
            raise CarrierError("results are stored while the session reads them")
        if mistake is CarrierMistake.ANSWER_BEFORE_RESULTS and here.answer != frame.word:
            yield state._replace(here=here._replace(answer=frame.word))
            continue
        after = here._replace(results=frame.payload, answer=frame.word)
        yield state._replace(here=after, back=back)
        if mistake is CarrierMistake.FRAMES_REPEAT:
            yield state._replace(here=after)


def _arriving(setting: CarrierSetting, frames: tuple[Frame, ...]) -> list[tuple[int, Frame]]:
    return list(enumerate(frames))[: None if setting.mistake is CarrierMistake.FRAMES_OVERTAKE else 1]


def _far_end(setting: CarrierSetting, state: State) -> Iterator[State]:
    there, mistake = state.there, setting.mistake
    if there.answer != there.sent:
        frame = Frame("answer", there.answer, there.results)
        yield state._replace(there=there._replace(sent=there.answer), back=(*state.back, frame))
    for number, frame in _arriving(setting, state.out):
        out = state.out[:number] + state.out[number + 1 :]
        if mistake is CarrierMistake.ASK_BEFORE_ROWS and there.ask != frame.word:
            yield state._replace(there=there._replace(ask=frame.word))
            continue
        if there.serving:
            raise CarrierError("rows are stored while the expert rank reads them")
        yield state._replace(there=there._replace(rows=frame.payload, ask=frame.word), out=out)


def _expert(state: State) -> Iterator[State]:
    there = state.there
    if there.serving:
        if there.rows != there.serving:
            raise CarrierError(f"rows {there.rows} are served for {there.serving}")
        after = there._replace(results=there.rows, answer=there.serving, serving=0)
        yield state._replace(there=after)
        return
    if there.raised > there.epoch:
        yield state._replace(there=there._replace(epoch=there.raised, answer=there.raised * 10))
    if there.ask > there.taken and there.ask // 10 == there.epoch:
        yield state._replace(there=there._replace(serving=there.ask, taken=there.ask))
