"""Graceful shutdown: every gateway drains its requests within a deadline.

Running requests may continue for `[gateway] drain_s`; new requests are refused immediately. After that, or on a second
stop request, the remaining clients receive an error that the server stops. A gateway or controller that does not
respond delays nothing.
"""

import logging
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Protocol

logger = logging.getLogger(__name__)

LOGS_S = 5.0
"""Time for replicas to finish writing their decision logs [s]; a slow disk does not delay the shutdown further."""
ANNOUNCE_S = 2.0
"""Time for clients to receive the final error of their requests, and for gateways to report it [s]."""
POLL_S = 0.05
REACH_S = 3.0
"""Time to reach the gateways: the launcher has to connect to Ray first."""
SILENT_S = 1.0
"""Drains that take no longer [s] are not reported."""

Tell = Callable[[float], int]
"""Sends replicas a command with a time limit [s]; blocks. For `announce_shutdown` it drains gateways and returns the
number of requests that it ended.
"""


class StopRequest(Protocol):
    """Source of a stop request, which the user may repeat to stop sooner."""

    def hurried(self) -> bool:
        """Whether the request was repeated. Called on the main thread, every `POLL_S`."""
        ...


def announce_shutdown(drain_s: float, stop_request: StopRequest, tell: Tell, say: Callable[[str], None]) -> None:
    """Drain requests for at most `drain_s` [s], less after a repeated stop request.

    Effects: returns when all requests have ended or received the error, or their gateways do not respond.
    """
    if stop_request.hurried():
        drain_s = 0.0
    if drain_s <= 0:
        say("stopping ...")
    waiting, limit = _Question(tell, drain_s), drain_s + REACH_S + ANNOUNCE_S
    waited, said = 0.0, drain_s <= 0
    while not waiting.over(POLL_S) and waited < limit:
        waited += POLL_S
        if not said and waited >= SILENT_S:
            said = True
            say(
                f"stopping: no new requests are accepted; running ones may continue for {drain_s:g} s; Ctrl-C stops now"
            )
        if drain_s > 0 and stop_request.hurried():
            said = True
            say("stopping at once ...")
            waiting, drain_s, limit, waited = _Question(tell, 0.0), 0.0, REACH_S + ANNOUNCE_S, 0.0
    if not said:
        say("stopping ...")
    if waiting.answer:
        say(f"{waiting.answer} request{'s' * (waiting.answer > 1)} had to be aborted")


def close_logs(tell: Tell, say: Callable[[str], None]) -> None:
    """Close the decision logs, so that only the log of a killed process lacks its end.

    Args:
        tell: closes all of them within a time limit [s]; returns the number of logs not closed.
    Effects: returns when all are, or after `LOGS_S`.
    """
    question = _Question(tell, LOGS_S)
    if not question.over(LOGS_S) or question.failed or question.answer:
        say("not every decision log could be closed; those are INCOMPLETE for `cloudmatrix replay`")


class _Question:
    """One call on a daemon thread; callers wait with a timeout, and process exit does not wait for it."""

    def __init__(self, tell: Tell, seconds: float) -> None:
        self.answer = 0
        """Result so far."""
        self.failed = False
        """The call raised an error."""
        self._answer: SimpleQueue[int] = SimpleQueue()
        threading.Thread(target=self._ask, args=(tell, seconds), name="announce_shutdown", daemon=True).start()

    def over(self, seconds: float) -> bool:
        """Wait for the response for `seconds`. Returns: whether it arrived."""
        try:
            self.answer = self._answer.get(timeout=seconds)
        except Empty:
            return False
        return True

    def _ask(self, tell: Tell, seconds: float) -> None:
        answer = 0
        try:
            answer = tell(seconds)
        except Exception:  # any error of Ray: a half-stopped system must be stopped too
            self.failed = True
            logger.info("the replicas could not be notified that the system stops", exc_info=True)
        finally:
            self._answer.put(answer)
