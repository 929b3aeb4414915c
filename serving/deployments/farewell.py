"""How a system that was asked to stop lets its requests end: every gateway is told to drain, with a deadline.

What runs may go on for `[gateway] drain_s`; new requests are refused at once. What is left then, or when the launcher
is asked a second time, is told that the server stops. A gateway or a controller that does not answer holds nothing up.
"""

import logging
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Protocol

logger = logging.getLogger(__name__)

FAREWELL_S = 2.0
"""How long clients have to take the error that ends their requests, and gateways to say that they have."""
LOOK_S = 0.05
SILENT_S = 0.3
"""Nothing is said about a drain that takes no longer."""

Tell = Callable[[float], int]
"""Tells every gateway to drain within so many seconds; blocks. Returns: requests that were ended by it."""


class Patience(Protocol):
    """Whoever asked to stop."""

    @property
    def hurried(self) -> bool:
        """Whether they have asked again."""
        ...


def farewell(drain_s: float, patience: Patience, tell: Tell, say: Callable[[str], None]) -> None:
    """Let requests end, for `drain_s` at most, less if that is asked for.

    Effects: returns when all have ended, or have been told, or their gateways do not answer.
    """
    if patience.hurried:
        drain_s = 0.0
    if drain_s <= 0:
        say("stopping ...")
    waiting, limit = _Question(tell, drain_s), drain_s + FAREWELL_S
    waited, said = 0.0, drain_s <= 0
    while not waiting.over(LOOK_S) and waited < limit:
        waited += LOOK_S
        if not said and waited >= SILENT_S:
            said = True
            say(f"stopping: nothing new is taken, what runs has {drain_s:g} s to end; Ctrl-C again ends it at once ...")
        if drain_s > 0 and patience.hurried:
            say("stopping at once ...")
            waiting, drain_s, limit, waited = _Question(tell, 0.0), 0.0, FAREWELL_S, 0.0
    if not said:
        say("stopping ...")
    if waiting.ended:
        say(f"{waiting.ended} request{'s' * (waiting.ended > 1)} had to be ended")


class _Question:
    """One call on a thread of its own, which nobody waits for any longer than they want, not even at exit."""

    def __init__(self, tell: Tell, seconds: float) -> None:
        self.ended = 0
        """Requests that were ended, as far as is known."""
        self._answer: SimpleQueue[int] = SimpleQueue()
        threading.Thread(target=self._ask, args=(tell, seconds), name="farewell", daemon=True).start()

    def over(self, seconds: float) -> bool:
        """Wait for the answer for so long. Returns: whether it is there."""
        try:
            self.ended = self._answer.get(timeout=seconds)
        except Empty:
            return False
        return True

    def _ask(self, tell: Tell, seconds: float) -> None:
        ended = 0
        try:
            ended = tell(seconds)
        except Exception:  # whatever Ray raises: a system that is half gone is stopped all the same
            logger.info("the gateways could not be told to drain", exc_info=True)
        finally:
            self._answer.put(ended)
