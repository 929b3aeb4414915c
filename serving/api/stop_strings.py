"""Finds stop strings in text that arrives in pieces, and lets no part of one out before it is known.

The rule, the same for any cutting into pieces: reading the text character by character, the first moment at which it
ends with a stop string ends it; of several that end there, the longest counts. Text is given out as soon as it can no
longer be the start of a stop string.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StopMatch:
    """What one piece gave: text that may go out, and the stop string that ended the sequence, if any."""

    text: str
    stopped_by: str | None = None


class StopStrings:
    """State of one sequence."""

    __slots__ = ("_held", "_include", "_prefixes", "_stops")

    def __init__(self, stops: tuple[str, ...], *, include: bool = False) -> None:
        """Watch for `stops` (non-empty strings); `include` leaves the matched one in the text."""
        self._stops = stops
        self._include = include
        self._held = ""
        # Longest first, so that the first hit of `endswith` gives the length to hold back.
        prefixes = {stop[:n] for stop in stops for n in range(1, len(stop))}
        self._prefixes = tuple(sorted(prefixes, key=len, reverse=True))

    def push(self, piece: str) -> StopMatch:
        """Take the next piece of text. After a match nothing more may be pushed."""
        text = self._held + piece
        found = self._first_match(text)
        if found is not None:
            end, stop = found
            self._held = ""
            return StopMatch(text[: end if self._include else end - len(stop)], stop)
        self._held = ""
        if text.endswith(self._prefixes):
            held = next(prefix for prefix in self._prefixes if text.endswith(prefix))
            self._held = held
            text = text[: -len(held)]
        return StopMatch(text)

    def flush(self) -> str:
        """Text still held back, when the sequence ended for another reason."""
        held, self._held = self._held, ""
        return held

    def _first_match(self, text: str) -> tuple[int, str] | None:
        """The match that ends first; of those, the longest."""
        best: tuple[int, int, str] | None = None
        for stop in self._stops:
            start = text.find(stop)
            if start >= 0 and (best is None or (start + len(stop), start) < best[:2]):
                best = (start + len(stop), start, stop)
        return None if best is None else (best[0], best[2])
