"""Assembles arguments that arrive one by one into one JSON object."""

import json
from collections.abc import Sequence

from serving.gateway.api.tools.closing import Closing, raw_text
from serving.gateway.api.tools.reader import Reader, Steps
from serving.gateway.api.tools.typed_text import as_json, property_schema, types_of

_STRING = frozenset({"string"})


class Arguments:
    """Arguments of one call, which the constructor opens."""

    def __init__(self, reader: Reader, name: str) -> None:
        self._reader = reader
        self._schema = reader.tools.get(name)
        self._any = False
        reader.calls.open(name)

    def argument(self, key: str, closings: Sequence[Closing], *, is_string: bool | None = None) -> Steps[bool]:
        """Read one argument's raw text up to its end.

        Args:
            is_string: whether it is a string, if known; None = use the tool's schema.
        Returns: whether it was closed.
        """
        reader = self._reader
        types = types_of(property_schema(self._schema, key), self._schema)
        if is_string is not None:
            types = _STRING if is_string else frozenset({"null", "boolean", "number", "integer", "array", "object"})
        head = ("{" if not self._any else ", ") + json.dumps(key, ensure_ascii=False) + ": "
        self._any = True
        if types == _STRING:  # may be long, so it is emitted as it arrives
            reader.calls.write(head + '"')
            closed = yield from raw_text(reader, closings, reader.calls.write_string)
            if closed:
                reader.calls.write('"')
            return closed
        pieces: list[str] = []
        closed = yield from raw_text(reader, closings, pieces.append)
        if closed:
            reader.calls.write(head + as_json(reader.marks.spelled("".join(pieces)), types))
        return closed

    def end(self) -> None:
        """Finish the call."""
        self._reader.calls.write("}" if self._any else "{}")
        self._reader.calls.close()
