"""A rank's service to its peers, which its engine's thread provides instead of sleeping."""

from collections.abc import Callable

from hardware.clock import Clock
from serving.instance.core.ports import GroupExecutor, StepExecutor


class PeerService:
    """The group's side of an engine's loop; an instance with one process only waits.

    Args:
        wait: sleeps for a number of seconds, or until `wake`.
        time_scale: seconds of `clock` per real second.
        limit_s: tolerated delay beyond the serving time, as a peer's step may cause [s of `clock`].
    """

    def __init__(
        self,
        executor: StepExecutor,
        clock: Clock,
        wait: Callable[[float], object],
        time_scale: float,
        limit_s: float,
    ) -> None:
        self._group = executor if isinstance(executor, GroupExecutor) else None
        self._clock = clock
        self._wait = wait
        self._time_scale = time_scale
        self._limit_s = limit_s
        self._until: float | None = None
        """While peers are served: the planned end, which a peer's step may exceed."""

    def rest(self, seconds: float) -> None:
        """Take part in the peers' steps for `seconds`, or until an event arrives. On the engine's thread.

        Raises: GroupError if the group cannot continue.
        """
        if self._group is None:
            self._wait(seconds)
            return
        self._until = self._clock.now() + seconds * self._time_scale
        self._group.serve(seconds)

    def back(self) -> None:
        """Record that the thread no longer serves its peers."""
        self._until = None

    def wake(self) -> None:
        """End `rest`, including one about to start. Any thread."""
        if self._group is not None:
            self._group.wake()

    def overdue_s(self, now: float) -> float | None:
        """How long the thread has been blocked by something other than a peer's step [s]; None = not serving now.

        A peer's step is supervised by that peer. Any thread.
        """
        until = self._until
        if until is None:
            return None
        late = now - until
        return late if late > self._limit_s else 0.0
