"""Decodes operations from HTTP: from a JSON body or a query, and from fields of the route."""

import math
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from loadgen.json_text import check_depth
from serving.errors import UNREADABLE, ScaleError
from serving.values.scaling import Replicas

BY_PAGE = "page"


class RayScale(Struct, frozen=True):
    """`ScalePool` in the format of Ray's own route; other fields are ignored."""

    target_num_replicas: Replicas


Command = TypeVar("Command", bound=Struct)


def from_json(body: bytes, kind: type[Command], **fixed: str) -> Command:
    """Decode an operation from a request's body; an empty body is an empty object.

    Args:
        fixed: fields given by the route, not by the body.
    Raises: ScaleError, kind `invalid`, naming the field.
    """
    try:
        check_depth(body)
        return _command(msgspec.json.decode(body or b"{}", type=dict[str, Any]), kind, fixed, strict=True)
    except UNREADABLE as error:
        raise _refused(error) from error


def from_query(query: Mapping[str, str], kind: type[Command], **fixed: str) -> Command:
    """Decode an operation from a query string. A field with an empty value counts as missing.

    Args:
        fixed: fields given by the route, not by the query.
    Raises: ScaleError, kind `invalid`, naming the field.
    """
    given = {name: value for name, value in query.items() if value != ""}
    try:
        command = _command(given, kind, fixed, strict=False)
    except msgspec.MsgspecError as error:
        raise _refused(error) from error
    for name in kind.__struct_fields__:  # parsers accept "nan" as a float, and no bound excludes it
        value = getattr(command, name)
        if isinstance(value, float) and not math.isfinite(value):
            raise _refused(f"`{name}` is no number")
    return command


def _command(given: Mapping[str, Any], kind: type[Command], fixed: Mapping[str, str], *, strict: bool) -> Command:
    if "pool" in given and "pool" in fixed:
        raise msgspec.ValidationError("Object contains unknown field `pool`")
    if given.get("by") == BY_PAGE:
        raise msgspec.ValidationError(f"Invalid enum value {BY_PAGE!r} - at `$.by`")
    return msgspec.convert({**given, **fixed}, type=kind, strict=strict)


def _refused(reason: object) -> ScaleError:
    return ScaleError(f"The request is not understood: {reason}.", kind="invalid")
