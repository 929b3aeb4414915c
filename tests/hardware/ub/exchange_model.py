"""Pure model of the exchange between ranks, and a search through all its states.

A rank is a list of actions, each one store or one read of memory. The search runs every order of the ranks' actions,
lets any one rank die between any two of them, and lets the shell raise the epoch after that. A payload in memory is
the moment that it was written for, or `TORN` while it is being written.

A step is one announcement of all to all, then layers of dispatch and combine, then an empty dispatch. The words of
successive rounds alternate between the two columns, from step to step as well.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum, auto

RANKS = 3
TORN = -1
EMPTY = 0


class Mistake(Enum):
    """An error in the protocol that the search must find."""

    SIGNAL_BEFORE_PAYLOAD = auto()
    ONE_AREA = auto()  # rows and results share the same memory
    ONE_COLUMN = auto()  # words of successive rounds overwrite one another
    LOOK_AT_AWAITED_ONLY = auto()  # the death of a rank that is not awaited stays unnoticed
    STAGE_BEFORE_ANNOUNCEMENT = auto()  # a new epoch starts with payload


class ActionKind(Enum):
    """Kind of an action."""

    TEAR = auto()  # first store of a payload
    FILL = auto()  # last one: the payload is whole
    POST = auto()
    AWAIT = auto()
    READ = auto()


@dataclass(frozen=True, slots=True)
class Action:
    """One atomic action of a rank.

    Attributes:
        cell: index into memory.
        value: stored, or expected.
        peer: whose word is awaited.
    """

    kind: ActionKind
    cell: int
    value: int
    peer: int = 0


@dataclass(frozen=True, slots=True)
class Setting:
    """Parameters of one search."""

    steps: int = 2
    layers: int = 1
    crash: bool = False
    raise_epoch: bool = False
    mistake: Mistake | None = None


State = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], int]
"""Memory; position of each rank in its program; epoch of each (`_LOST` once it saw a death); dead rank, or -1."""

_LOST = 9
_WORDS, _ROWS, _RESULTS, _EPOCHS = 0, 18, 21, 30
_CELLS = 33


def _word(column: int, source: int, at: int) -> int:
    return _WORDS + (column * RANKS + at) * RANKS + source


def _program(rank: int, members: Sequence[int], epoch: int, setting: Setting) -> Iterator[Action]:
    """Actions of one rank in one epoch. A word's or payload's value is its moment, increasing within an epoch."""
    mistake = setting.mistake
    peers = [peer for peer in members if peer != rank]
    moment = epoch * 100

    def signal(to: Sequence[int]) -> Iterator[Action]:
        column = 0 if mistake is Mistake.ONE_COLUMN else moment % 2
        for peer in to:
            yield Action(ActionKind.POST, _word(column, rank, peer), moment)

    def await_all() -> Iterator[Action]:
        column = 0 if mistake is Mistake.ONE_COLUMN else moment % 2
        for peer in peers:
            yield Action(ActionKind.AWAIT, _word(column, peer, rank), moment, peer)

    def payload(cell: int, value: int) -> Iterator[Action]:
        yield Action(ActionKind.TEAR, cell, TORN)
        yield Action(ActionKind.FILL, cell, value)

    def results(source: int, writer: int) -> int:
        return _ROWS + source if mistake is Mistake.ONE_AREA else _RESULTS + source * RANKS + writer

    def in_order(payloads: Sequence[Action]) -> Iterator[Action]:
        if mistake is Mistake.SIGNAL_BEFORE_PAYLOAD:
            yield from signal(peers)
            yield from payloads
        else:
            yield from payloads
            yield from signal(peers)

    for _ in range(setting.steps if epoch == 1 else 1):
        moment += 1
        if not (mistake is Mistake.STAGE_BEFORE_ANNOUNCEMENT and epoch > 1):
            yield from signal(peers)
            yield from await_all()
        for _ in range(setting.layers):
            moment += 1  # dispatch: rows are staged once and read in place
            yield from in_order(list(payload(_ROWS + rank, moment)))
            yield from await_all()
            for peer in peers:
                yield Action(ActionKind.READ, _ROWS + peer, moment)
            moment += 1  # combine: results are written into their source's window
            wholes = [action for peer in peers for action in payload(results(peer, rank), moment)]
            yield from in_order(wholes)
            yield from await_all()
            for peer in peers:
                yield Action(ActionKind.READ, results(rank, peer), moment)
        moment += 1  # no rank has more
        yield from signal(peers)
        yield from await_all()


class ProtocolError(Exception):
    """Raised when the protocol permits a forbidden outcome."""


@dataclass(frozen=True, slots=True)
class Visited:
    """Size of a search, and the ends of ranks in states without a further move: `peer lost`, or done, in which
    epoch.
    """

    states: int
    endings: frozenset[str]


def search(setting: Setting) -> Visited:
    """Visit every state.

    Raises: ProtocolError if a rank reads data that is incomplete or of another round, finds a word of a later round, or
        waits for ever.
    """
    programs = {
        (rank, epoch, dead): list(_program(rank, [r for r in range(RANKS) if r != dead], epoch, setting))
        for rank in range(RANKS)
        for dead in range(-1, RANKS)
        for epoch in (1, 2)
    }
    memory = [EMPTY] * _CELLS
    memory[_EPOCHS:] = [1] * RANKS
    first: State = (tuple(memory), (0,) * RANKS, (1,) * RANKS, -1)
    seen, todo, endings = {first}, [first], set[str]()
    while todo:
        state = todo.pop()
        moves = list(_moves(state, programs, setting))
        if not moves:
            endings |= set(_endings(state, programs))
        for after in moves:
            if after not in seen:
                seen.add(after)
                todo.append(after)
    return Visited(len(seen), frozenset(endings))


Programs = dict[tuple[int, int, int], list[Action]]


def _program_of(state: State, rank: int, programs: Programs) -> list[Action]:
    epoch = state[2][rank]
    return programs[rank, epoch, state[3] if epoch > 1 else -1]


def _moves(state: State, programs: Programs, setting: Setting) -> Iterator[State]:
    memory, places, epochs, dead = state
    for rank in range(RANKS):
        if rank == dead:
            continue
        raised = memory[_EPOCHS + rank]
        if epochs[rank] == _LOST:
            if raised > 1:
                yield _enter(state, rank, raised)
            continue
        program = _program_of(state, rank, programs)
        if places[rank] == len(program):
            if raised > epochs[rank]:
                yield _enter(state, rank, raised)
        else:
            yield from _act(state, rank, program[places[rank]], setting)
        if setting.crash and dead < 0:
            yield memory, places, epochs, rank
    if setting.raise_epoch and dead >= 0:  # the shell, one window after the other in any order
        for rank in range(RANKS):
            if rank != dead and memory[_EPOCHS + rank] == 1:
                yield _store(memory, _EPOCHS + rank, 2), places, epochs, dead


def _act(state: State, rank: int, action: Action, setting: Setting) -> Iterator[State]:
    memory, places, epochs, dead = state
    there = memory[action.cell]
    if action.kind is ActionKind.READ:
        if there != action.value:
            raise ProtocolError(f"rank {rank} reads {there}, not {action.value}")
    elif action.kind is ActionKind.AWAIT:
        if there // 100 == action.value // 100 and there > action.value:
            raise ProtocolError(f"rank {rank} awaits {action.value} and finds {there}")
        if there != action.value:
            if memory[_EPOCHS + rank] > epochs[rank]:
                yield _enter(state, rank, memory[_EPOCHS + rank])
            only = setting.mistake is Mistake.LOOK_AT_AWAITED_ONLY
            if epochs[rank] == 1 and dead >= 0 and (action.peer == dead or not only):
                yield memory, places, _put(epochs, rank, _LOST), dead
            return
    else:
        memory = _store(memory, action.cell, action.value)
    yield memory, _put(places, rank, places[rank] + 1), epochs, dead


def _enter(state: State, rank: int, epoch: int) -> State:
    """Start the new epoch without the dead rank."""
    memory, places, epochs, dead = state
    return memory, _put(places, rank, 0), _put(epochs, rank, epoch), dead


def _put(values: tuple[int, ...], index: int, value: int) -> tuple[int, ...]:
    return (*values[:index], value, *values[index + 1 :])


_store = _put


def _endings(state: State, programs: Programs) -> Iterator[str]:
    """Ends of the ranks. Raises: ProtocolError if one still waits."""
    _, places, epochs, dead = state
    for rank in range(RANKS):
        if rank == dead:
            continue
        if epochs[rank] == _LOST:
            yield "peer lost"
        elif places[rank] == len(_program_of(state, rank, programs)):
            yield f"done in epoch {epochs[rank]}"
        else:
            raise ProtocolError(f"rank {rank} waits for ever")
