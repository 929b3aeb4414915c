"""Texts between tags, in XML-like families: unescaped, so that a text may contain the tag itself.

A tag closes a text only if the expected syntax follows it: `</parameter>` within a sentence is text.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from serving.gateway.api.tools.reader import Emit, Reader, Steps

_NO, _WAIT = -1, -2


@dataclass(frozen=True, slots=True)
class Closing:
    """One possible end of a text.

    Args:
        text: closing text.
        behind: texts of which one must follow, after white space.
        at_end: whether the end of the output may follow instead.
        stays: whether the closing text stays in the buffer, because it is not part of the tag.
    """

    text: str
    behind: tuple[str, ...]
    at_end: bool = True
    stays: bool = False

    def verdict(self, buffer: str, at: int, *, ended: bool) -> int:
        """Length of the closing text if the text ends at `at`; `_NO`; or `_WAIT` if more output is needed."""
        if not buffer.startswith(self.text, at):
            part = buffer[at:]
            return _WAIT if not ended and len(part) < len(self.text) and self.text.startswith(part) else _NO
        rest = buffer[at + len(self.text) :].lstrip()
        if any(rest.startswith(word) for word in self.behind) or (ended and not rest and self.at_end):
            return 0 if self.stays else len(self.text)
        partly = not ended and any(word.startswith(rest) for word in self.behind)
        return _WAIT if partly else _NO


def raw_text(reader: Reader, closings: Sequence[Closing], emit: Emit) -> Steps[bool]:
    """Emit a text up to the tag that closes it, and consume the tag. Returns: whether it was closed."""
    firsts = "".join({closing.text[0] for closing in closings})
    while True:
        buffer, at = reader.buffer, 0
        while True:
            at = min((i for i in (buffer.find(first, at) for first in firsts) if i >= 0), default=-1)
            if at < 0:
                emit(reader.take(len(buffer)))
                break
            verdicts = [closing.verdict(buffer, at, ended=reader.ended) for closing in closings]
            size = next((one for one in verdicts if one >= 0), _NO)
            if size >= 0:
                emit(reader.take(at))
                reader.take(size)
                return True
            if _WAIT in verdicts:
                emit(reader.take(at))
                break
            at += 1
        if not (yield from reader.more()) and not reader.buffer:
            return False
