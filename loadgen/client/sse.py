"""Parser of server-sent events, independent of how the network splits them.

Follows the WHATWG text: lines end with LF, CR or CRLF; an event ends with an empty line; `data` lines of one event are
joined by LF; comments and other fields (`event`, `id`, `retry`) are ignored.
"""

_BOM = b"\xef\xbb\xbf"


class SseSplitter:
    """Takes bytes in any portions and returns the data of each event that they complete.

    Attributes:
        idle: no partial event is buffered, so a portion that is exactly one event may bypass this class.
    """

    __slots__ = ("_at_start", "_data", "_pieces", "_skip_lf", "idle")

    def __init__(self) -> None:
        self.idle = True
        self._pieces: list[bytes] = []  # of a line whose end has not come
        self._data: list[bytes] = []  # data lines of the event in progress
        self._skip_lf = False  # the last byte was a CR: an LF right after it belongs to the same line end
        self._at_start = True

    def feed(self, portion: bytes) -> list[bytes]:
        """Data of the events that end in this portion."""
        if self._skip_lf and portion:
            self._skip_lf = False
            if portion.startswith(b"\n"):
                portion = portion[1:]
        if b"\n" not in portion and b"\r" not in portion:
            if portion:
                self._pieces.append(portion)  # joined once its end has arrived: long lines in small pieces stay cheap
                self.idle = False
            return []
        events: list[bytes] = []
        self._pieces.append(portion)
        lines = b"".join(self._pieces).splitlines(keepends=True)
        self._pieces.clear()
        if not lines[-1].endswith((b"\n", b"\r")):
            self._pieces.append(lines.pop())
        elif lines[-1].endswith(b"\r"):
            self._skip_lf = True
        for line in lines:
            self._line(line.rstrip(b"\r\n"), events)
        self.idle = not (self._pieces or self._data or self._skip_lf)
        return events

    def finish(self) -> list[bytes]:
        """Data of an event that lacks its empty line at the end of the stream; some servers forget it."""
        events: list[bytes] = []
        if self._pieces:
            self._line(b"".join(self._pieces), events)
        self._line(b"", events)
        self._pieces.clear()
        self.idle = True
        return events

    def _line(self, line: bytes, events: list[bytes]) -> None:
        if self._at_start:
            self._at_start = False
            line = line.removeprefix(_BOM)
        if not line:
            if self._data:
                events.append(b"\n".join(self._data))
                self._data.clear()
        elif line.startswith(b"data:"):
            self._data.append(line[6:] if line.startswith(b"data: ") else line[5:])
        elif line == b"data":
            self._data.append(b"")
