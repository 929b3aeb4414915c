"""States of the model of sessions in `session_model.py`, and what it may be set to."""

from dataclasses import dataclass
from enum import Enum, auto
from typing import NamedTuple

TORN = -1
END, LOST, DEAD = -1, -2, -3
"""Places of a session that is behind its last round, that waits for the next epoch, whose rank is dead."""


class Mistake(Enum):
    """A way to get the protocol wrong."""

    ASK_BEFORE_ROWS = auto()
    DONE_BEFORE_RESULTS = auto()
    WORD_WITHOUT_EPOCH = auto()
    WORD_WITHOUT_ROUND = auto()
    NO_HELLO = auto()  # a session begins in a new epoch although an expert rank may be at work for it in the old one
    HELLO_IN_SERVICE = auto()
    HELLO_OF_THE_DEAD = auto()  # is waited for
    FIRST_DONE_IS_ENOUGH = auto()
    RESULTS_BY_ROUND = auto()  # all results of a session lie at the same place
    SAME_MAP = auto()  # the next epoch's experts lie with the dead rank, too
    EPOCH_UNSEEN = auto()  # by who waits
    WAIT_WITHOUT_SERVICE = auto()  # a rank of both kinds serves when its session is over
    OLD_ASK_STAYS = auto()  # of a dead rank, when another takes its number
    OLD_ANSWER_COUNTS = auto()  # the same: who has it answered last
    ADMIT_IN_SERVICE = auto()  # another rank, while the dead one's rows are computed


class ProtocolError(Exception):
    """The protocol let something happen that must not."""


@dataclass(frozen=True, slots=True)
class Setting:
    """Setting of one search.

    Args:
        colocated: each session's rank is an expert rank, too, in one thread; there are as many of both.
        dies: an "expert" or "attention" rank (colocated: both); empty = none.
        joins: the last session comes when the others are at work.
        again: a dead attention rank's number is taken by another rank, in the same epoch.
        idle: the last session has no work; colocated, its rank only serves.
        halves: all sessions are micro-batches of one rank.
    """

    sessions: int = 2
    experts: int = 2
    rounds: int = 2
    colocated: bool = False
    dies: str = ""
    joins: bool = False
    again: bool = False
    idle: bool = False
    halves: bool = False
    mistake: Mistake | None = None


class Session(NamedTuple):
    """One session, and what of its window and in expert ranks is about it. Lists are by expert rank, or by expert.

    Attributes:
        place: in its program.
        raised: epoch that the shell has named.
        rows: round that they were staged for, as `Search.moment`.
        serving: 1 = rank e computes its rows; 2 = it has; 3 = it has said so too early.
        life: number of the rank that has this place. mapped: life whose window rank e has mapped.
    """

    epoch: int
    place: int
    raised: int
    rows: int
    results: tuple[int, ...]
    asks: tuple[int, ...]
    dones: tuple[int, ...]
    answered: tuple[int, ...]
    serving: tuple[int, ...]
    life: int = 1
    mapped: tuple[int, ...] = ()


class Expert(NamedTuple):
    """An expert rank."""

    epoch: int
    raised: int
    dead: bool


class State(NamedTuple):
    """Everything."""

    sessions: tuple[Session, ...]
    experts: tuple[Expert, ...]
    killed: bool
