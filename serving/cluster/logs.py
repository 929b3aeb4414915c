"""Our log lines in a file of their own: a replica's beside Serve's, another actor's in Ray's log of its process."""

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


def log_to_stderr() -> None:
    """Send everything logged under `serving` and `hardware` to standard error, which Ray keeps in a file per process.

    Effects: changes logging of this process.
    """
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(levelname)s %(asctime)s %(name)s: %(message)s"))
    for name in ("serving", "hardware"):
        logger = logging.getLogger(name)
        logger.setLevel(logging.INFO)
        logger.handlers = [handler]
        logger.propagate = False
