"""Finds stop strings in text that arrives in pieces, and lets no part of one out before it is known.

The rule, the same for any cutting into pieces: reading the text character by character, the first moment at which it
ends with a stop string ends it; of several that end there, the longest counts. Text is given out as soon as it can no
longer be the start of a stop string.

How: Knuth-Morris-Pratt, one automaton per stop string. Its state is the length of the longest beginning of the string
that the text ends with, so the longest of all states is also what must be held back. Memory grows with the strings'
lengths, time per character with their number.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StopMatch:
    """Result of one piece: text that may go out, and the stop string that ended the sequence, if any."""

    text: str
    stopped_by: str | None = None


class StopSet:
    """Stop strings, made ready once for all sequences of a request.

    Args:
        stops: non-empty strings.
    """

    __slots__ = ("firsts", "steps", "stops")

    def __init__(self, stops: tuple[str, ...]) -> None:
        self.stops = stops
        self.firsts = tuple({stop[0] for stop in stops})
        self.steps = tuple(_borders(stop) for stop in stops)
        """Of each string and each of its beginnings: the longest shorter beginning that this one ends with."""

    def __bool__(self) -> bool:
        return bool(self.stops)


class StopStrings:
    """State of one sequence."""

    __slots__ = ("_held", "_include", "_set", "_states")

    def __init__(self, stops: StopSet, *, include: bool = False) -> None:
        """Watch for `stops`; `include` leaves the matched one in the text."""
        self._set = stops
        self._include = include
        self._held = ""
        self._states = [0] * len(stops.stops)

    @property
    def held(self) -> int:
        """Characters that are held back."""
        return len(self._held)

    def push(self, piece: str, *, armed: bool = True) -> StopMatch:
        """Take the next piece of text. After a match nothing more may be pushed.

        Args:
            armed: False = a stop string that ends within this piece does not count; one that only begins there may.
        """
        if not self._held and not any(first in piece for first in self._set.firsts):
            return StopMatch(piece)
        text, before = self._held + piece, len(self._held)
        for position, char in enumerate(piece, start=before + 1):
            ended = self._advance(char)
            if ended is not None and armed:
                self._held = ""
                return StopMatch(text[: position if self._include else position - len(ended)], ended)
        kept = len(text) - max(self._states)
        self._held = text[kept:]
        return StopMatch(text[:kept])

    def flush(self) -> str:
        """Text still held back, when the sequence ended for another reason."""
        held, self._held = self._held, ""
        return held

    def _advance(self, char: str) -> str | None:
        """One more character. Returns: the longest stop string that the text ends with."""
        ended: str | None = None
        states, steps = self._states, self._set.steps
        for index, stop in enumerate(self._set.stops):
            state, borders = states[index], steps[index]
            while state and stop[state] != char:
                state = borders[state - 1]
            state += stop[state] == char
            if state == len(stop):
                if ended is None or state > len(ended):
                    ended = stop
                state = borders[state - 1]
            states[index] = state
        return ended


def _borders(stop: str) -> tuple[int, ...]:
    borders = [0]
    for char in stop[1:]:
        length = borders[-1]
        while length and stop[length] != char:
            length = borders[length - 1]
        borders.append(length + (stop[length] == char))
    return tuple(borders)
