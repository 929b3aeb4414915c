"""Whitespace in JSON that a request leaves to the model: bounded, because models go on with blanks to the end."""

import re

from serving.errors import GrammarError

MOST_BLANKS = 20
"""Repetitions of what a pattern repeats without a bound, and blanks of a line."""
FREE_WHITESPACE = rf"[ \t]{{1,{MOST_BLANKS}}}|[ \t]{{0,{MOST_BLANKS}}}(\r?\n[ \t]{{0,{MOST_BLANKS}}}){{1,2}}"
"""Whitespace of any form: blanks, at most two line breaks, indentation."""
_MOST_CHARACTERS = 100
"""Characters that a pattern may match: nested repetitions multiply."""
_PIECE = re.compile(
    r"(?P<atom>[ \n\t\r]|\\[ntrs]|\[(?:[ \n\t\r]|\\[ntrs])+\])"
    r"|(?P<open>\((?:\?:)?)|(?P<close>\))|(?P<bar>\|)"
    r"|(?P<times>[*+?]|\{(?P<least>\d{1,4})(?P<comma>,(?P<most>\d{1,4})?)?\})\??"
)


def bounded_whitespace(pattern: str) -> str:
    """A request's pattern of whitespace, with a bound on all that it repeats.

    Raises: GrammarError for what is no such pattern, matches more than JSON's whitespace, or too much of it.
    """
    found: list[str] = []
    widths = [[0, 0]]
    """For each open group: the longest alternative so far, and this one."""
    last, place = 0, 0
    while place < len(pattern):
        piece = _PIECE.match(pattern, place)
        if piece is None:
            raise _refused("may hold blanks, tabs and line breaks, groups, '|' and repetitions, and nothing else")
        place = piece.end()
        if piece["atom"] is not None:
            found.append(piece["atom"].replace(r"\s", r" \t\r\n" if piece["atom"][0] == "[" else r"[ \t\r\n]"))
            last = 1
        elif piece["open"] is not None:
            found.append("(?:")
            widths.append([0, 0])
            continue
        elif piece["bar"] is not None:
            found.append("|")
            widths[-1] = [max(widths[-1]), 0]
            continue
        elif piece["close"] is not None:
            if len(widths) == 1:
                raise _refused("is no regex: a group ends that has not begun")
            found.append(")")
            last = max(widths.pop())
        else:
            least, most = _times(piece)
            found.append(f"{{{least},{most}}}")
            widths[-1][1] -= last
            last *= most
        widths[-1][1] += last
    if len(widths) > 1:
        raise _refused("is no regex: a group has no end")
    if (longest := max(widths[0])) > _MOST_CHARACTERS:
        raise _refused(f"may match {longest} characters, and at most {_MOST_CHARACTERS} are allowed")
    return "".join(found)


def _times(piece: re.Match[str]) -> tuple[int, int]:
    """How often a piece may come: least and most."""
    sign = piece["times"]
    if sign in "*+?":
        return int(sign == "+"), 1 if sign == "?" else MOST_BLANKS
    least = int(piece["least"])
    return least, least if piece["comma"] is None else int(piece["most"] or max(least, MOST_BLANKS))


def _refused(words: str) -> GrammarError:
    return GrammarError(f"its pattern of whitespace {words}")
