"""Undeclared fields of a request body: refused, suggested or ignored with a warning.

known to another server, changes the response  400 `unsupported_parameter`, with our name for it
known to another server, harmless              ignored, named in the warning header
unknown, but close to a field of ours          400 `unknown_parameter`, with the suggestion
unknown                                        ignored, named in the warning header
A field is recognized in every spelling: `stopSequences` and `stop-sequences` are `stop_sequences`.

"""

import re
from collections.abc import Mapping
from difflib import get_close_matches
from functools import lru_cache

from serving.errors import InvalidRequestError
from serving.gateway.api.foreign_fields import HARMLESS, MESSAGE, REFUSED, TOKENIZING, Foreign

WARNING_HEADER = "x-cloudmatrix-warning"
MOST_NAMED = 8
"""Ignored fields named in one header; the rest are counted."""
_LONGEST_NAME = 40
_LOOKED_AT = 32
"""Unknown names of one body that are compared with ours; each comparison takes a fraction of a millisecond."""
_CLOSE = 0.82
"""Similarity in difflib: one letter missing, added or changed in a name of six, two letters in longer names."""
_IDENTIFYING = re.compile(r"[_-](ids?|names?|keys?|types?)$|(?<=[a-z])(I[dD]s?|Names?|Keys?|Types?)$")
"""Suffix of names with another meaning: `model_id` and `streamId` are not misspelt `model` and `stream`."""


def ignored_fields(
    extra: Mapping[str, object], own: Mapping[str, object], foreign: Mapping[str, Foreign], path: str = ""
) -> list[str]:
    """The names among `extra` that may be ignored, in printable form.

    Args:
        extra: fields that the model does not declare.
        own: declared fields, with their values.
        foreign: fields to be refused.
        path: of their object, with a dot at its end.
    Raises: InvalidRequestError for a field that changes the response, or that looks like a misspelt one of ours.
    """
    whole = {**extra, **own} if extra else own
    ignored: list[str] = []
    strangers = 0
    for name, value in extra.items():
        if value is None or name in own:  # null means absent
            continue
        known, meant = name, None
        if name not in foreign and name not in HARMLESS and len(name) <= _LONGEST_NAME and strangers < _LOOKED_AT:
            strangers += 1
            known, meant = _look_up(name, frozenset(own), inner=bool(path))
        if meant is not None:
            field = path + printable(name)
            raise InvalidRequestError(
                f"unknown field '{field}'; did you mean '{path}{meant}'?", param=field, code="unknown_parameter"
            )
        if known not in foreign:
            ignored.append(path + printable(name))
        elif not foreign[known].changes_nothing(value, whole):
            raise unsupported(path + name, foreign[known].ours)
    return ignored


def unsupported(name: str, ours: str = "") -> InvalidRequestError:
    """The error for a field that would change the response if it were supported."""
    remedy = f"use {ours!r}" if ours.isidentifier() else f"use {ours}" if ours else "leave it out"
    return InvalidRequestError(
        f"'{name}' is not supported by this server; {remedy}", param=name, code="unsupported_parameter"
    )


def warning_text(names: list[str]) -> str:
    """The warning header's value."""
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return f"ignored fields: {', '.join(names[:MOST_NAMED])}{more}"


def printable(name: str) -> str:
    """A client's name in a form that is safe in a header and a log."""
    short = name[:_LONGEST_NAME].encode("ascii", "backslashreplace").decode()
    return "".join(c if c.isprintable() and c not in ",'" else "?" for c in short)


@lru_cache(maxsize=1024)
def _look_up(name: str, own: frozenset[str], *, inner: bool) -> tuple[str, str | None]:
    """A name in other servers' spelling, and our field that was probably meant instead.

    Args:
        inner: whether it is in an object within the body, where the body's own names do not apply.
    """
    bare = {_bare(one): one for one in sorted(own)}
    if (exact := bare.get(_bare(name))) is not None:
        return name, exact
    if (known := (_KNOWN_INSIDE if inner else _KNOWN).get(_bare(name))) is not None:
        return known, None
    close = get_close_matches(_bare(name), bare, n=1, cutoff=_CLOSE)
    meant = bare[close[0]] if close else None
    if meant is not None and _IDENTIFYING.search(name) and not _IDENTIFYING.search(meant):
        return name, None
    return name, meant


def _bare(name: str) -> str:
    """The letters and digits: `maxTokens` and `max-tokens` are spellings of `max_tokens`."""
    return "".join(c for c in name.lower() if c.isalnum())


_KNOWN_INSIDE = {_bare(name): name for name in MESSAGE}
_KNOWN = {_bare(name): name for name in (*HARMLESS, *TOKENIZING, *REFUSED)}
