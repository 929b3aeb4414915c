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

LOGS_S = 5.0
"""How long replicas have to write what their decision logs still lack; a disk that cannot keep up holds nothing up."""
FAREWELL_S = 2.0
"""How long clients have to take the error that ends their requests, and gateways to say that they have."""
LOOK_S = 0.05
REACH_S = 3.0
"""How long it may take to reach the gateways at all: the launcher has to connect to Ray first."""
SILENT_S = 1.0
"""Nothing is said about a drain that takes no longer."""

Tell = Callable[[float], int]
"""Tells replicas something that they have so many seconds for; blocks. For `farewell` it is that gateways drain, and
what it returns the number of requests that were ended by it."""


class StopPatience(Protocol):
    """The source of a stop request, which may be repeated by somebody in a hurry."""

    def hurried(self) -> bool:
        """Whether they have asked again. Asked for on the main thread, every `LOOK_S`."""
        ...


def farewell(drain_s: float, patience: StopPatience, tell: Tell, say: Callable[[str], None]) -> None:
    """Let requests end, for `drain_s` at most, less if that is asked for.

    Effects: returns when all have ended, or have been told, or their gateways do not answer.
    """
    if patience.hurried():
        drain_s = 0.0
    if drain_s <= 0:
        say("stopping ...")
    waiting, limit = _Question(tell, drain_s), drain_s + REACH_S + FAREWELL_S
    waited, said = 0.0, drain_s <= 0
    while not waiting.over(LOOK_S) and waited < limit:
        waited += LOOK_S
        if not said and waited >= SILENT_S:
            said = True
            say(f"stopping: nothing new is taken, what runs has {drain_s:g} s to end; Ctrl-C again ends it at once ...")
        if drain_s > 0 and patience.hurried():
            said = True
            say("stopping at once ...")
            waiting, drain_s, limit, waited = _Question(tell, 0.0), 0.0, REACH_S + FAREWELL_S, 0.0
    if not said:
        say("stopping ...")
    if waiting.answer:
        say(f"{waiting.answer} request{'s' * (waiting.answer > 1)} had to be ended")


def close_logs(tell: Tell, say: Callable[[str], None]) -> None:
    """Have decision logs closed, so that a log without an end is one whose process was killed.

    Args:
        tell: has all of them closed within so many seconds; its answer is the number of those that were not.
    Effects: returns when all are, or after `LOGS_S`.
    """
    question = _Question(tell, LOGS_S)
    if not question.over(LOGS_S) or question.failed or question.answer:
        say("not every decision log could be closed; those are INCOMPLETE for `cloudmatrix replay`")


class _Question:
    """One call on a thread of its own, which nobody waits for any longer than they want, not even at exit."""

    def __init__(self, tell: Tell, seconds: float) -> None:
        self.answer = 0
        """What was answered, as far as is known."""
        self.failed = False
        """It could not be asked."""
        self._answer: SimpleQueue[int] = SimpleQueue()
        threading.Thread(target=self._ask, args=(tell, seconds), name="farewell", daemon=True).start()

    def over(self, seconds: float) -> bool:
        """Wait for the answer for so long. Returns: whether it is there."""
        try:
            self.answer = self._answer.get(timeout=seconds)
        except Empty:
            return False
        return True

    def _ask(self, tell: Tell, seconds: float) -> None:
        answer = 0
        try:
            answer = tell(seconds)
        except Exception:  # whatever Ray raises: a system that is half gone is stopped all the same
            self.failed = True
            logger.info("the replicas could not be told that the system stops", exc_info=True)
        finally:
            self._answer.put(answer)
