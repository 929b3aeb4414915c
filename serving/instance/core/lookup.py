"""Draft tokens by lookup: what followed the same tokens earlier in a sequence's own prompt and output.

    text      ... the old king said | no ... and the old king said |
                               match ┘ next                    end ┘    "no ..." are the draft tokens

This needs no draft layer, so it works with every model. It finds long drafts in edits, quotes, code and documents with
repeated keys; an agent's earlier turns are in its prompt. In other text it finds little, and costs some microseconds a
token.

The end of the text is looked up once; then the match is followed: while each new token equals the token after the
match, the match grows by one. At the first other token the end is looked up again; if that finds too little, the broken
match is resumed at the next token that is found shortly after the break, as after another value of the same key.

So every token after a match tests a prediction, drafted or not, and acceptance is known before anything is drafted. It
depends mostly on the length of the match, hence it is counted by length, for this sequence and for all. `Speculation`
then compares the gains with the measured cost of draft tokens.
"""

from array import array
from collections.abc import Sequence

_CANDIDATES = 8
"""Number of earlier places that one lookup compares, latest first: bounds its time where a pair is frequent."""
_LONGEST = 16
"""Longer matches count as this long."""
_RESUMED = 16
"""A broken match is resumed at most so many tokens after its break."""
_MIX = 1_000_003
"""Odd multiplier of the hash, which spreads pairs of small token ids over the table."""
_MOST_SLOTS = 1 << 18
"""Entries of an index's table, 4 bytes each; with longer texts, earlier places of a pair are more often lost."""

_MEMORY, _COMMON_MEMORY = 0.95, 0.998
"""Factors on the counts of one sequence, and of all, per observation: memories of twenty and of five hundred."""
_COMMON_WEIGHT = 4.0
"""Weight of the common acceptance, in observations, relative to a sequence's own."""
_PRIOR = (0.5, 0.3, 0.5, 0.7, 0.8, 0.9, 0.9)
"""Acceptance before any observation, by class of length."""
_CLASSES = (0, 0, 1, 2, 3, 3, 4, 4, 4, *(5,) * 7, 6)
"""Class of each length up to `_LONGEST`: 1 (resumed), 2, 3, 4-5, 6-8, 9-15, longer."""
assert len(_CLASSES) == _LONGEST + 1

_STEP_WEIGHT = 0.1
"""Weight of a step in the mean of accepted draft tokens: a memory of ten."""


class TextIndex:
    """Finds earlier places of a growing text that equal its end. A token costs a constant time and some 20 bytes."""

    __slots__ = ("_before", "_latest", "_mask", "text")

    def __init__(self, tokens: int) -> None:
        """
        Args:
            tokens: expected length of the text; a longer one is possible.
        """
        slots = min(max(256, 1 << tokens.bit_length()), _MOST_SLOTS)
        self._mask = slots - 1
        self._latest = array("i", bytes(4 * slots))
        """Latest position of each hash of two consecutive tokens, as the position of the second; 0 = none."""
        self._before = array("i")
        """For each position, the previous one with the same hash; 0 = none."""
        self.text: list[int] = []

    def extend(self, tokens: Sequence[int]) -> None:
        """Append tokens."""
        latest, before, mask, text = self._latest, self._before, self._mask, self.text
        position, last = len(text), text[-1] if text else 0
        for token in tokens:
            slot = (last * _MIX + token) & mask
            before.append(latest[slot])
            latest[slot] = position
            position += 1
            last = token
        text.extend(tokens)

    def find(self) -> tuple[int, int]:
        """The longest of the latest matches of the text's end.

        Returns: position of the token after the match, and the match's length, at least two; (0, 0) = none.
        """
        text, end = self.text, len(self.text) - 1
        best = longest = 0
        at = self._before[end] if end > 0 else 0
        for _ in range(_CANDIDATES):
            if at == 0:
                break
            length, most = 0, min(_LONGEST, at + 1)
            while length < most and text[at - length] == text[end - length]:
                length += 1
            if length > longest:
                best, longest = at + 1, length
            at = self._before[at]
        return (best, longest) if longest > 1 else (0, 0)

    def resume(self, broken: int) -> int:
        """The position after the first token, from a broken match's next position on, that equals the text's last one.

        Returns: 0 if none of the next tokens does.
        """
        end = len(self.text) - 1
        try:
            return self.text.index(self.text[end], broken, min(broken + _RESUMED, end)) + 1
        except ValueError:
            return 0


class MatchCounts:
    """How often the token after a match was right, by class of the match's length."""

    __slots__ = ("_memory", "hits", "tries")

    def __init__(self, *, common: bool = False) -> None:
        """
        Args:
            common: the counts are of all sequences, and begin with the prior.
        """
        self._memory = _COMMON_MEMORY if common else _MEMORY
        first = _COMMON_WEIGHT if common else 0.0
        self.tries = [first] * len(_PRIOR)
        self.hits = [first * share for share in _PRIOR]

    def observe(self, kind: int, *, hit: bool) -> None:
        """Count one token after a match of this class."""
        self.tries[kind] = self.tries[kind] * self._memory + 1.0
        self.hits[kind] = self.hits[kind] * self._memory + hit


class DraftLookup:
    """The text of one sequence, and its draft tokens. Mutable; depends only on the tokens."""

    __slots__ = ("_broken", "_common", "_index", "_length", "_most", "_next", "_own", "accepted", "gains")

    def __init__(self, most: int, common: MatchCounts, tokens: int) -> None:
        """
        Args:
            most: maximum number of draft tokens.
            common: counts of all sequences; updated.
            tokens: expected length of prompt and output.
        """
        self._most = most
        self._common = common
        self._own = MatchCounts()
        self._index = TextIndex(tokens)
        self._next = self._length = self._broken = 0
        self.gains: tuple[float, ...] = ()
        """Mean number of tokens that each further draft token adds to a step; empty = no match."""
        self.accepted = 0.0
        """Accepted draft tokens per step, a mean of the latest steps."""

    @property
    def known(self) -> int:
        """Tokens of the text so far."""
        return len(self._index.text)

    def learn(self, tokens: Sequence[int]) -> None:
        """Append tokens that were not generated here, such as the prompt. Effects: ends the match; see `look`."""
        self._index.extend(tokens)
        self._next, self._broken, self.gains = 0, 0, ()

    def look(self) -> None:
        """Look up the end of the text."""
        self._next, self._length = self._index.find()
        self._weigh()

    def follow(self, tokens: Sequence[int]) -> None:
        """Append generated tokens. Effects: counts right and wrong predictions; a wrong one ends the match."""
        index = self._index
        self.accepted *= 1.0 - _STEP_WEIGHT
        for token in tokens:
            hit = False
            if self._next:
                hit, kind = index.text[self._next] == token, _CLASSES[min(self._length, _LONGEST)]
                self._own.observe(kind, hit=hit)
                self._common.observe(kind, hit=hit)
            index.extend((token,))
            if hit:
                self._next += 1
                self._length += 1
            else:
                self._broken = self._next or self._broken
                self._next, self._length = index.find()
                if self._broken and self._length < 3 and (resumed := index.resume(self._broken)):
                    self._next, self._length, self._broken = resumed, 1, 0
        self._weigh()

    def on_accepted(self, drafts: int) -> None:
        """Count the accepted draft tokens of the step whose tokens follow next."""
        self.accepted += _STEP_WEIGHT * drafts

    def draft(self, count: int) -> tuple[int, ...]:
        """At most `count` tokens that followed the match."""
        return tuple(self._index.text[self._next : self._next + count]) if self._next else ()

    def doubt(self) -> None:
        """Keep the counts: unlike those of `Acceptance`, they are never old, because every prediction is counted."""

    def _weigh(self) -> None:
        if not self._next:
            self.gains = ()
            return
        gain, gains, own, common = 1.0, [], self._own, self._common
        for ahead in range(min(self._most, self.known - self._next)):
            kind = _CLASSES[min(self._length + ahead, _LONGEST)]
            prior = _COMMON_WEIGHT * common.hits[kind] / common.tries[kind]
            gain *= (own.hits[kind] + prior) / (own.tries[kind] + _COMMON_WEIGHT)
            gains.append(gain)
        self.gains = tuple(gains)
