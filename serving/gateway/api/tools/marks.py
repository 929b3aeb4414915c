"""Markers in an output as single characters that no text can contain, so that text and markers are one string.

A marker is represented by a lone surrogate, which decoders never output. So a regular expression or a plain search can
distinguish a `</tool_call>` marker from one spelled by ordinary tokens. A marker that is a token of the vocabulary
counts only as that token; any other is searched in the text.
"""

from collections.abc import Collection, Sequence
from functools import cached_property

_FIRST = 0xD800
"""High surrogates; chat templates use low ones for their marks."""


class ToolMarks:
    """Markers of one family over one vocabulary.

    Args:
        names: the markers' texts.
        tokens: markers that are tokens of the vocabulary, with their ids.
    """

    def __init__(self, names: Sequence[str], tokens: dict[str, int] | None = None) -> None:
        self._chars = {name: chr(_FIRST + index) for index, name in enumerate(names)}
        self._texts = {ord(char): name for name, char in self._chars.items()}
        self.tokens = {name: token for name, token in (tokens or {}).items() if name in self._chars}
        self.of_token = {token: self._chars[name] for name, token in self.tokens.items()}
        """Character of each marker that is a token, by its id."""
        self.in_text = tuple(name for name in names if name not in self.tokens)
        """Markers to search for in the text."""

    def __getitem__(self, name: str) -> str:
        """Character of a marker."""
        return self._chars[name]

    def __contains__(self, name: str) -> bool:
        return name in self._chars

    def chars(self, names: Collection[str]) -> str:
        """Characters of several markers."""
        return "".join(self._chars[name] for name in names)

    @cached_property
    def all(self) -> str:
        """Characters of all markers."""
        return "".join(self._chars.values())

    def coded(self, text: str) -> str:
        """The text with every marker in it replaced by its character, whether a token or not."""
        for name in sorted(self._chars, key=len, reverse=True):
            text = text.replace(name, self._chars[name])
        return text

    def spelled(self, text: str) -> str:
        """The text with its markers as the model wrote them."""
        return text.translate(self._texts)


class TextMarks:
    """Finds markers in text that arrives in pieces, and withholds text that may become one."""

    def __init__(self, marks: ToolMarks) -> None:
        self._names = sorted(marks.in_text, key=len, reverse=True)
        self._chars = {name: marks[name] for name in self._names}
        self._heads = {name[:size] for name in self._names for size in range(1, len(name))}
        self._firsts = {name[0] for name in self._names}
        self._reach = max(map(len, self._names), default=0)
        self._held = ""

    def push(self, text: str) -> str:
        """Add text. Returns: the text that is certain by now, with a single character for each marker."""
        if not self._names:
            return text
        text = self._held + text
        if not self._firsts.isdisjoint(text):
            for name in self._names:
                text = text.replace(name, self._chars[name])
        kept = next((s for s in range(min(self._reach - 1, len(text)), 0, -1) if text[-s:] in self._heads), 0)
        self._held = text[len(text) - kept :]
        return text[: len(text) - kept]

    def flush(self) -> str:
        """Return the withheld text, at the end of the output."""
        held, self._held = self._held, ""
        return held
