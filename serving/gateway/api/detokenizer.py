"""Token ids to text as they arrive, in constant time per token, never cutting a character.

Two implementations of one protocol. Byte-level vocabularies have exact bytes per token, so an incremental UTF-8 decoder
suffices. Any other decoder (SentencePiece style) may join tokens in ways that only the full decoder knows, so a short
window of recent tokens is decoded twice and the difference is the new text; a text that ends in U+FFFD is withheld,
because the next token may complete the character. The pieces joined equal a single decode of all tokens (in the second
implementation only while the tokens spell valid UTF-8: a full decode may show earlier bytes of a bad run as U+FFFD).
"""

import codecs
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from serving.gateway.api.tokenizer import Tokenizer

MAX_HELD_TOKENS = 8
"""A character has at most 4 bytes, so more tokens than this do not wait for completion: they are not UTF-8."""
_CONTEXT = 6
"""Prompt tokens decoded before a continuing text: enough to include one with text of its own among special ones."""

_utf8_decoder = codecs.getincrementaldecoder("utf-8")


class Detokenizer(Protocol):
    """Converts a sequence's tokens to text piece by piece."""

    def push(self, tokens: Iterable[int]) -> str:
        """Text that became certain with `tokens`; may be empty."""
        ...

    def broken_off(self, token: int) -> int:
        """Characters (U+FFFD) emitted before the text of `token`, because it does not complete the withheld bytes."""
        ...

    def flush(self) -> str:
        """Withheld text, as a full decode would show it. Ends the sequence."""
        ...


class ByteDetokenizer:
    """For byte-level vocabularies: one table lookup per token."""

    __slots__ = ("_decoder", "_skipped", "_table")

    def __init__(self, table: tuple[bytes, ...], skipped: frozenset[int]) -> None:
        self._table = table
        self._skipped = skipped
        self._decoder = _utf8_decoder("replace")

    def push(self, tokens: Iterable[int]) -> str:
        """Text that became certain with `tokens`; may be empty."""
        table, skipped, size = self._table, self._skipped, len(self._table)
        return self._decoder.decode(b"".join([table[t] for t in tokens if t not in skipped and t < size]))

    def broken_off(self, token: int) -> int:
        """Characters (U+FFFD) emitted because `token` does not complete a partial character."""
        held, own = self._decoder.getstate()[0], () if token in self._skipped else self._table[token : token + 1]
        first = own[0][:1] if own else b""
        # A lone first byte decodes to one U+FFFD; with a byte that continues it, still to one character.
        return len((held + first).decode(errors="replace")) - 1 if held and first else 0

    def flush(self) -> str:
        """Incomplete characters, as U+FFFD."""
        return self._decoder.decode(b"", True)


class WindowDetokenizer:
    """For every other decoder: decode a short window with and without the new tokens.

    `_tokens[:_read]` has been output and is kept as context: it is the previous piece, so it starts at a character
    boundary and has some text. Older tokens are dropped, which keeps the work per token constant.
    """

    __slots__ = ("_read", "_skip_special", "_tokenizer", "_tokens")

    def __init__(self, tokenizer: Tokenizer, skip_special_tokens: bool, behind: Sequence[int] = ()) -> None:
        self._tokenizer = tokenizer
        self._skip_special = skip_special_tokens
        # A character has up to 4 tokens, so one of these suffixes of the prompt starts at a boundary.
        ends = (list(behind[-size:]) for size in range(_CONTEXT, _CONTEXT + 4))
        self._tokens = next((end for end in ends if self._is_whole(end)), []) if behind else []
        self._read = len(self._tokens)

    def push(self, tokens: Iterable[int]) -> str:
        """Text that became certain with `tokens`; may be empty."""
        self._tokens.extend(tokens)
        return self._advance(final=False)

    def broken_off(self, token: int) -> int:
        """Characters (U+FFFD) emitted because `token` does not complete a partial character."""
        if self._read == len(self._tokens) or not is_text(self._tokenizer.token_bytes(token)):
            return 0
        return len(self._decode(self._tokens)) - len(self._decode(self._tokens[: self._read]))

    def flush(self) -> str:
        """Withheld text; U+FFFD where characters stayed incomplete."""
        return self._advance(final=True)

    def _advance(self, *, final: bool) -> str:
        given = self._decode(self._tokens[: self._read])
        text = self._decode(self._tokens)
        held = len(self._tokens) - self._read
        incomplete = text.endswith("\N{REPLACEMENT CHARACTER}") and held <= MAX_HELD_TOKENS and not final
        if len(text) <= len(given) or incomplete:
            return ""
        del self._tokens[: self._read]
        self._read = len(self._tokens)
        return text[len(given) :]

    def _is_whole(self, tokens: list[int]) -> bool:
        text = self._decode(tokens)
        return bool(text) and "\N{REPLACEMENT CHARACTER}" not in text

    def _decode(self, tokens: list[int]) -> str:
        return self._tokenizer.decode(tokens, skip_special_tokens=self._skip_special)


def is_text(raw: bytes) -> bool:
    """Whether bytes are whole characters."""
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True


def make_detokenizer(tokenizer: Tokenizer, *, skip_special_tokens: bool, behind: Sequence[int] = ()) -> Detokenizer:
    """The cheapest detokenizer that is exact for this tokenizer.

    Args:
        behind: tokens that the text continues, so that its first word keeps its space; decoders strip a leading one.
    """
    if tokenizer.bytes_of is not None:
        return ByteDetokenizer(tokenizer.bytes_of, tokenizer.special_ids if skip_special_tokens else frozenset())
    return WindowDetokenizer(tokenizer, skip_special_tokens, behind)


# Finds stop strings in text that arrives in pieces, and withholds text that may be the start of one.
#
# The rule, independent of the cutting into pieces: reading character by character, the text stops at the first position
# where it ends with a stop string; of several that end at the same position, the longest counts. Text is released as
# soon as it can no longer be the start of a stop string.
#
# Method: Knuth-Morris-Pratt, one automaton per stop string. Its state is the length of the longest prefix of the string
# that the text ends with, so the maximum of all states is the number of characters to withhold. Memory is linear in the
# strings' lengths, time per character in their number.


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
        """For each string and each of its prefixes: length of the longest shorter prefix that is a suffix of it."""

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
