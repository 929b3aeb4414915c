"""Our log lines in the replica's own log file, beside Serve's."""

import logging


def log_beside_serve() -> None:
    """Send everything logged under `serving` and `hardware` where Serve's own lines of this replica go.

    Effects: changes logging of this process.
    """
    handlers = logging.getLogger("ray.serve").handlers
    for name in ("serving", "hardware"):
        logger = logging.getLogger(name)
        logger.setLevel(logging.INFO)
        logger.handlers = list(handlers)
        logger.propagate = False
