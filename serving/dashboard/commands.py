"""What may be asked of a pool, checked at the edge: the types and bounds of each field, from JSON or from a query."""

import math
from collections.abc import Mapping
from typing import Annotated, Literal, TypeVar

import msgspec
from msgspec import Meta, Struct

from hardware.nesting import check_depth
from serving.errors import UNREADABLE, ScaleError

MOST_REPLICAS = 384
"""NPUs of a supernode: nobody means more."""
LONGEST_HOLD_S = 30 * 86_400.0
"""As the scaling board has it."""

MOST_DECISIONS = 200

Replicas = Annotated[int, Meta(ge=0, le=MOST_REPLICAS)]
HoldSeconds = Annotated[float, Meta(ge=0, le=LONGEST_HOLD_S)]
Caller = Literal["rest", "cli"]


class Scale(Struct, frozen=True, forbid_unknown_fields=True):
    """Give a pool so many replicas, held for so long [s]; None = as configured."""

    replicas: Replicas
    hold_s: HoldSeconds | None = None
    by: Caller = "rest"


class RayScale(Struct, frozen=True):
    """The same in the words of Ray's own route; what else Ray may take is not looked at."""

    target_num_replicas: Replicas


class Hold(Struct, frozen=True, forbid_unknown_fields=True):
    """Keep a pool as it is, for so long [s]; None = as configured."""

    hold_s: HoldSeconds | None = None
    by: Caller = "rest"


class Release(Struct, frozen=True, forbid_unknown_fields=True):
    """Give a pool back to the autoscaler."""

    by: Caller = "rest"


class DecisionsQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """Which decisions: of one pool, with a larger id than `after`, at most `limit`."""

    pool: Annotated[str, Meta(max_length=64)] | None = None
    after: Annotated[int, Meta(ge=0)] = 0
    limit: Annotated[int, Meta(ge=1, le=MOST_DECISIONS)] = MOST_DECISIONS


Command = TypeVar("Command", Scale, RayScale, Hold, Release, DecisionsQuery)


def from_json(body: bytes, kind: type[Command]) -> Command:
    """A command from a request's body; an empty one is an empty object.

    Raises: ScaleError, kind `invalid`, naming the field.
    """
    try:
        check_depth(body)
        return msgspec.json.decode(body or b"{}", type=kind)
    except UNREADABLE as error:
        raise ScaleError(f"The request is not understood: {error}.", kind="invalid") from error


def from_query(query: Mapping[str, str], kind: type[Command]) -> Command:
    """A command from a query string. An empty value stands for a field that is left out.

    Raises: ScaleError, kind `invalid`, naming the field.
    """
    given = {name: value for name, value in query.items() if value != ""}
    try:
        command = msgspec.convert(given, type=kind, strict=False)
    except msgspec.MsgspecError as error:
        raise ScaleError(f"The request is not understood: {error}.", kind="invalid") from error
    for name in kind.__struct_fields__:  # "nan" is a float to a parser, and below no bound
        value = getattr(command, name)
        if isinstance(value, float) and not math.isfinite(value):
            raise ScaleError(f"The request is not understood: `{name}` is no number.", kind="invalid")
    return command
