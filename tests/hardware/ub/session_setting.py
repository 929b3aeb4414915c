"""What `session_model.py` searches: the ranks, what happens to them, and mistakes in the protocol."""

from dataclasses import dataclass
from enum import Enum, auto


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
