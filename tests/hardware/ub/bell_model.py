"""Pure model of the bell at which a rank sleeps, and a search through every order of its and its peers' stores.

The sleeper says which answers it waits for and whether any question is to wake it, looks, and sleeps. A peer stores its
word, looks at the bell, and wakes the sleeper: after a question at once, after an answer if it is the last awaited one.
"""

from collections.abc import Iterator
from enum import Enum, auto
from itertools import product
from typing import NamedTuple


class BellMistake(Enum):
    """A way to lose a wake-up."""

    LOOK_BEFORE_SAYING = auto()
    RING_BEFORE_STORE = auto()
    SLEEP_WITHOUT_COUNT = auto()  # of the bell before it was said who is awaited
    EARLY_ONES_STAY = auto()  # whoever answered before it could see that it is awaited stays in the set


class Bell(NamedTuple):
    """Memory, the sleeper and its peers.

    Attributes:
        words: bits of the answers and, behind them, of the questions that are there.
        awaited: bits of the answers that are waited for.
        any: whether a question wakes.
        step: of the sleeper; -1 = awake, it has seen what it waits for.
        before: `rung` as the sleeper saw it.
        said: bits that it stores into `awaited`.
        peers: step of each.
    """

    words: int = 0
    awaited: int = 0
    any: int = 0
    rung: int = 0
    step: int = 0
    before: int = 0
    said: int = 0
    peers: tuple[int, ...] = ()


class LostWakeup(Exception):
    """The sleeper sleeps, and nobody will wake it."""


def search(answers: int, questions: int, mistake: BellMistake | None = None) -> int:
    """Visit every state; returns their number. Raises: LostWakeup."""
    first = Bell(peers=(0,) * (answers + questions))
    seen, todo = {first}, [first]
    while todo:
        bell = todo.pop()
        after = [*_sleeper(bell, answers, questions, mistake)]
        for peer in range(answers + questions):
            after += _peer(bell, peer, answers, mistake)
        if not after and bell.step != -1:
            raise LostWakeup(str(bell))
        todo += set(after) - seen
        seen |= set(after)
    return len(seen)


def _sleeper(bell: Bell, answers: int, questions: int, mistake: BellMistake | None) -> Iterator[Bell]:
    """Count the bell, say who is awaited, look, take back those who came early, sleep, begin anew."""
    all_answers = (1 << answers) - 1
    came = bell.words & all_answers
    there = bell.words > all_answers or (answers > 0 and came == all_answers)
    order = "count say look take sleep".split()
    if mistake is BellMistake.LOOK_BEFORE_SAYING:
        order = "count look say take sleep".split()
    if bell.step < 0 or (there and bell.step == 0):
        if bell.step == 0:
            yield bell._replace(step=-1)
        return
    match order[bell.step] if bell.step < len(order) else "asleep":
        case "count":
            yield bell._replace(step=bell.step + 1, rung=0, before=0, said=all_answers & ~came)
        case "say":
            yield bell._replace(step=bell.step + 1, awaited=bell.said, any=int(questions > 0))
        case "look":
            yield bell._replace(step=0 if there else bell.step + 1)
        case "take":
            early = bell.said & came if mistake is not BellMistake.EARLY_ONES_STAY else 0
            left = bell.awaited & ~early
            yield bell._replace(step=0 if early and not left else bell.step + 1, awaited=left)
        case "sleep":
            changed = bell.rung != bell.before and mistake is not BellMistake.SLEEP_WITHOUT_COUNT
            yield bell._replace(step=0 if changed else bell.step + 1)


def _peer(bell: Bell, peer: int, answers: int, mistake: BellMistake | None) -> Iterator[Bell]:
    """Store the word; look at the bell; take the own name out; wake."""
    step, bit = bell.peers[peer], 1 << peer
    order = ("ring", "store") if mistake is BellMistake.RING_BEFORE_STORE else ("store", "ring")
    if step >= len(order):
        return
    bell = bell._replace(peers=(*bell.peers[:peer], step + 1, *bell.peers[peer + 1 :]))
    if order[step] == "store":
        yield bell._replace(words=bell.words | bit)
    elif peer >= answers:
        yield _woken(bell) if bell.any else bell
    elif bell.awaited & bit:
        left = bell._replace(awaited=bell.awaited & ~bit)
        yield left if left.awaited else _woken(left)
    else:
        yield bell


def _woken(bell: Bell) -> Bell:
    asleep = bell.step == 5
    return bell._replace(rung=bell.rung + 1, step=0 if asleep else bell.step)


CASES = tuple((answers, questions) for answers, questions in product(range(3), range(3)) if answers + questions)
"""Answers that are waited for, and questions that may come."""
