"""How many parts of an instance a load takes, where an instance grows and shrinks by parts.

sequences                   . abilities[n]: what n parts decode in time; more parts hold fewer experts each,
   |                  . '     so that twice as many do more than twice as much
   |          . ' '
   +--------------------- parts
"""

from bisect import bisect_left
from collections.abc import Sequence


def parts_for(sequences: float, abilities: Sequence[float]) -> float:
    """Parts that so many sequences take, fractions of one included; beyond the table as its end goes on.

    Args:
        abilities: of 0, 1, 2, ... parts; rising from 0, at least two.
    """
    last = len(abilities) - 1
    above = min(bisect_left(abilities, sequences, 1), last)
    low, high = abilities[above - 1], abilities[above]
    return above - 1 + (sequences - low) / (high - low)
