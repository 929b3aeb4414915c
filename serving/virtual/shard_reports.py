"""Where a process that simulates some of the supernodes tells how far it is.

Imports nothing that may be compiled: a process begins here, before it knows whether it runs compiled.
"""

from pathlib import Path
from typing import Any

from serving import compiled

_QUEUE: Any = None


def begin(queue: Any, folder: Path | None) -> None:  # noqa: ANN401 - a queue between processes has no type to name
    """Start of a process.

    Args:
        queue: of (supernode, virtual time, arrived requests), to the process that started this one.
        folder: see `compiled.begin_worker`.
    """
    global _QUEUE
    _QUEUE = queue
    compiled.begin_worker(folder)


def tell(number: int, at_s: float, arrived: int) -> None:
    """How far a supernode is."""
    _QUEUE.put((number, at_s, arrived))
