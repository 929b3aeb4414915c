"""Finds stop strings in text that arrives in pieces, and withholds text that may be the start of one.

The rule, independent of the cutting into pieces: reading character by character, the text stops at the first position
where it ends with a stop string; of several that end at the same position, the longest counts. Text is released as soon
as it can no longer be the start of a stop string.

Method: Knuth-Morris-Pratt, one automaton per stop string. Its state is the length of the longest prefix of the string
that the text ends with, so the maximum of all states is the number of characters to withhold. Memory is linear in the
strings' lengths, time per character in their number.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StopMatch:
    """Result of one piece: text to release, and the stop string that ended the sequence, if any."""

    text: str
    stopped_by: str | None = None


class StopSet:
    """Stop strings, preprocessed once for all sequences of a request.

    Args:
        stops: non-empty strings.
    """

    __slots__ = ("firsts", "steps", "stops")

    def __init__(self, stops: tuple[str, ...]) -> None:
        self.stops = stops
        self.firsts = tuple({stop[0] for stop in stops})
        self.steps = tuple(_borders(stop) for stop in stops)
        """For each string and each of its prefixes: length of the longest shorter prefix that this one ends with."""

    def __bool__(self) -> bool:
        return bool(self.stops)


class StopStrings:
    """State of one sequence."""

    __slots__ = ("_held", "_include", "_set", "_states")

    def __init__(self, stops: StopSet, *, include: bool = False) -> None:
        """Search for `stops`; `include` leaves the matched one in the text."""
        self._set = stops
        self._include = include
        self._held = ""
        self._states = [0] * len(stops.stops)

    @property
    def held(self) -> int:
        """Number of withheld characters."""
        return len(self._held)

    def push(self, piece: str, *, armed: bool = True) -> StopMatch:
        """Add the next piece of text. Must not be called after a match.

        Args:
            armed: False = ignore a stop string that ends within this piece, but not one that only starts in it.
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
        """Return the withheld text, after the sequence ended for another reason."""
        held, self._held = self._held, ""
        return held

    def _advance(self, char: str) -> str | None:
        """Process one character. Returns: the longest stop string that the text now ends with."""
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
