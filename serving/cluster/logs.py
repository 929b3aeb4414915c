"""Log files of this package: a replica logs to Serve's file, other actors to Ray's log of their process."""

import logging

from serving.config.cluster import LogForm
from serving.telemetry.log_lines import JsonLines


def log_beside_serve(form: LogForm = "text") -> None:
    """Send all logs of `serving` and `hardware` to Serve's log of this replica.

    Args:
        form: `json` = to standard error instead, one object per line, because Serve's own lines have another format.
    Effects: changes logging of this process.
    """
    if form == "json":
        log_to_stderr(form)
        return
    _send_to(list(logging.getLogger("ray.serve").handlers))


def log_to_stderr(form: LogForm = "text") -> None:
    """Send all logs of `serving` and `hardware` to standard error, which Ray writes to a file per process.

    Effects: changes logging of this process.
    """
    handler = logging.StreamHandler()
    text = logging.Formatter("%(levelname)s %(asctime)s %(name)s: %(message)s")
    handler.setFormatter(JsonLines() if form == "json" else text)
    _send_to([handler])


def _send_to(handlers: list[logging.Handler]) -> None:
    for name in ("serving", "hardware"):
        logger = logging.getLogger(name)
        logger.setLevel(logging.INFO)
        logger.handlers = list(handlers)
        logger.propagate = False
