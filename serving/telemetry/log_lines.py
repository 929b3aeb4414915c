"""Log lines as JSON objects, one per line, for collectors that index fields."""

import json
import logging
import os
import socket
import time
from contextvars import ContextVar

REQUEST: ContextVar[str] = ContextVar("request", default="")
"""Id of the request that the present task works for; empty if it works for none, or for many."""


class JsonLines(logging.Formatter):
    """Formats each record as one object, always with the same keys; `exception` only if there is one.

    The request is that of the log call (`extra={"request_id": ...}`), otherwise that of the logging task.
    """

    def __init__(self) -> None:
        super().__init__()
        self._host = socket.gethostname()
        self._pid = os.getpid()

    def format(self, record: logging.LogRecord) -> str:
        seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        row = {
            "time": f"{seconds}.{int(record.msecs):03d}Z",
            "level": record.levelname,
            "host": self._host,
            "pid": self._pid,
            "logger": record.name,
            "request_id": getattr(record, "request_id", "") or REQUEST.get(),
            "message": record.getMessage(),
        }
        if record.exc_info:
            row["exception"] = self.formatException(record.exc_info)
        return json.dumps(row, ensure_ascii=False)
