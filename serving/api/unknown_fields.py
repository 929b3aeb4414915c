"""Fields of a request body that no wire model declares: refused, suggested or ignored with a warning.

known to another server, changes the answer    400 `unsupported_parameter`, with our name for it
known to another server, harmless              ignored, named in the warning header
unknown, but close to a field of ours          400 `unknown_parameter`, with the suggestion
unknown                                        ignored, named in the warning header
"""

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from functools import lru_cache

from serving.api.foreign_fields import HARMLESS, REFUSED, TOKENIZING, Foreign
from serving.errors import InvalidRequestError

WARNING_HEADER = "x-cloudmatrix-warning"
MOST_NAMED = 8
"""Ignored fields that one header names; the others are counted."""
_LONGEST_NAME = 40
_LOOKED_AT = 32
"""Unknown names of one body that are compared with ours; each comparison takes a fraction of a millisecond."""
_CLOSE = 0.82
"""Of difflib: one letter missing, added or changed in a name of six, two letters in longer ones."""


def ignored_fields(
    extra: Mapping[str, object], own: Iterable[str], foreign: Mapping[str, Foreign], path: str = ""
) -> list[str]:
    """The names among `extra` that may be ignored, printable.

    Args:
        extra: fields that the model does not declare.
        own: fields that it declares.
        foreign: those that are refused.
        path: of the object that holds them, with a dot at its end.
    Raises: InvalidRequestError for a field that changes the answer, or that looks like a misspelt one of ours.
    """
    names = frozenset(own)
    ignored: list[str] = []
    strangers = 0
    for name, value in extra.items():
        if value is None:  # null means absent
            continue
        if name in foreign:
            if not foreign[name].changes_nothing(value):
                raise unsupported(path + name, foreign[name].ours)
            continue
        if not _is_known(name) and len(name) <= _LONGEST_NAME and strangers < _LOOKED_AT:
            strangers += 1
            if (meant := _closest(name, names)) is not None:
                field = path + printable(name)
                raise InvalidRequestError(
                    f"unknown field '{field}'; did you mean '{path}{meant}'?", param=field, code="unknown_parameter"
                )
        ignored.append(path + printable(name))
    return ignored


def unsupported(name: str, ours: str = "") -> InvalidRequestError:
    """The error for a field that would change the answer if it were not ignored."""
    remedy = f"use {ours!r}" if ours.isidentifier() else f"use {ours}" if ours else "leave it out"
    return InvalidRequestError(
        f"'{name}' is not supported by this server; {remedy}", param=name, code="unsupported_parameter"
    )


def warning_text(names: list[str]) -> str:
    """The warning header's value."""
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return f"ignored fields: {', '.join(names[:MOST_NAMED])}{more}"


def printable(name: str) -> str:
    """A client's name as it may stand in a header and a log."""
    short = name[:_LONGEST_NAME].encode("ascii", "backslashreplace").decode()
    return "".join(c if c.isprintable() and c not in ",'" else "?" for c in short)


def _is_known(name: str) -> bool:
    return name in HARMLESS or name in REFUSED or name in TOKENIZING


@lru_cache(maxsize=1024)
def _closest(name: str, own: frozenset[str]) -> str | None:
    """Our field that was probably meant."""
    bare = {_bare(one): one for one in sorted(own)}
    if (exact := bare.get(_bare(name))) is not None:
        return exact
    close = get_close_matches(_bare(name), bare, n=1, cutoff=_CLOSE)
    return bare[close[0]] if close else None


def _bare(name: str) -> str:
    """The letters alone: `maxTokens` and `max-tokens` are spellings of `max_tokens`."""
    return "".join(c for c in name.lower() if c.isalnum())
