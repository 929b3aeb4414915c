"""A rank's executor without peers: `serve` waits up to its limit for a wake-up or a "peer's step"."""

import threading
from collections.abc import Callable

from serving.errors import GroupError
from serving.instance.core.ports import StepExecutor
from serving.values.step_plan import StepPlan, StepResult

PATIENCE_S = 60.0


class FakeGroupExecutor:
    """`GroupExecutor` around a plain one. Only a wake-up ends `serve`, so a lost one is detected."""

    def __init__(self, inner: StepExecutor) -> None:
        self._inner = inner
        self._woken = threading.Event()
        self.serving = threading.Event()
        """Set while the engine's thread serves."""
        self.peer_done = threading.Event()
        """Cleared: a peer's step lasts, which even a wake-up does not end."""
        self.peer_done.set()
        self.before: Callable[[], object] = lambda: None
        """Hook between the loop's last check and the wait."""
        self.lost = False
        """Whether the group has lost a rank."""
        self.served = 0

    def execute(self, plan: StepPlan) -> StepResult:
        """Implements `StepExecutor.execute`."""
        if self.lost:
            raise GroupError("rank 1 is gone")
        return self._inner.execute(plan)

    def serve(self, timeout_s: float) -> None:
        """Implements `GroupExecutor.serve`."""
        self.before()
        if self.lost:
            raise GroupError("rank 1 is gone")
        self.served += 1
        self.serving.set()
        assert self._woken.wait(PATIENCE_S), "nothing woke it"
        assert self.peer_done.wait(PATIENCE_S)
        self._woken.clear()
        self.serving.clear()
        if self.lost:
            raise GroupError("this rank is no member any more")

    def wake(self) -> None:
        """Implements `GroupExecutor.wake`."""
        self._woken.set()
