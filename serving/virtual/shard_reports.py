"""Progress reports of a process that simulates some of the supernodes.

Imports no module that may be compiled: a process starts in this module, before it knows whether it runs compiled.
"""

from pathlib import Path
from typing import Any

from serving import compiled

_QUEUE: Any = None


def begin(queue: Any, folder: Path | None) -> None:  # noqa: ANN401 - a queue between processes has no type to name
    """Initialize the process.

    Args:
        queue: to the parent process, for (supernode, virtual time [s], requests arrived).
        folder: see `compiled.begin_worker`.
    """
    global _QUEUE
    _QUEUE = queue
    compiled.begin_worker(folder)


def tell(number: int, at_s: float, arrived: int) -> None:
    """Report the progress of a supernode: virtual time [s] and requests arrived."""
    _QUEUE.put((number, at_s, arrived))
