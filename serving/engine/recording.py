"""An engine that leaves a record of every call.

Whoever drives it sees an `InstanceEngine`; nothing of this is in the way when nothing is recorded.
"""

from collections.abc import Callable
from typing import Any

from serving.engine import engine_calls as c
from serving.engine.engine import InstanceEngine
from serving.engine.events import EngineAction, EngineEvent, PullOrder
from serving.errors import HandoffError, ServingError
from serving.ids import SequenceId
from serving.policy.decision_log import perform
from serving.policy.pool.outcome import FetchReport
from serving.policy.step_plan import StepPlan, StepResult
from serving.values.sequence import HandoffTicket, SequenceSpec

Note = Callable[[c.EngineCall, object], None]
"""Takes one call and what came of it; called on the engine's thread, must return at once."""


class RecordedEngine:
    """Carries out each call on `engine` and notes it.

    A call that only empties a list which is empty, or foresees nothing, is not noted: it changes nothing.
    """

    def __init__(self, engine: InstanceEngine, note: Note) -> None:
        self._engine = engine
        self._note = note

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever the engine has
        """What only reads: settings, queues, snapshot, audit."""
        return getattr(self._engine, name)

    def add(self, spec: SequenceSpec, now: float) -> None:
        """As `InstanceEngine`; so for all of these."""
        self._do(c.Add(spec, now))

    def adopt(self, spec: SequenceSpec, ticket: HandoffTicket, now: float) -> None:
        """A handoff to pull."""
        self._do(c.Adopt(spec, ticket, now))

    def release(self, ticket_id: str, now: float, *, distrust: bool = False) -> None:
        """The end of a handoff."""
        self._do(c.Release(ticket_id, now, distrust))

    def cancel(self, sequence_id: SequenceId, now: float) -> None:
        """Forget a sequence."""
        self._do(c.Cancel(sequence_id, now))

    def drain(self) -> None:
        """Refuse new sequences."""
        self._do(c.Drain())

    def move_out(self, now: float) -> None:
        """What is inside is to go on elsewhere."""
        self._do(c.MoveOut(now))

    def next_action(self, now: float) -> EngineAction:
        """What to do now."""
        action: EngineAction = self._do(c.NextAction(now))
        return action

    def start_pulls(self, now: float) -> tuple[PullOrder, ...]:
        """Pulls that can start now."""
        pulls: tuple[PullOrder, ...] = self._do(c.StartPulls(now))
        return pulls

    def step_finished(self, result: StepResult, now: float) -> None:
        """The result of the plan in flight."""
        self._do(c.StepFinished(result, now))

    def foresee(self, now: float) -> StepPlan | None:
        """The step after the one in flight."""
        plan = self._engine.foresee(now)
        if plan is not None:
            call = c.Foresee(now)
            self._note(call, call.keep(plan))
        return plan

    def step_followed(self, result: StepResult, now: float) -> EngineAction:
        """The result of the plan in flight, behind which the next one runs."""
        action: EngineAction = self._do(c.StepFollowed(result, now))
        return action

    def step_failed(self, error: ServingError, now: float) -> None:
        """The plan in flight could not be executed."""
        self._do(c.StepFailed(c.ErrorText.of(error), now))

    def pull_finished(self, sequence_id: SequenceId, error: HandoffError | None, moved_bytes: int, now: float) -> None:
        """A pull ended."""
        self._do(c.PullFinished(sequence_id, c.ErrorText.of(error) if error is not None else None, moved_bytes, now))

    def fetch_finished(self, sequence_id: SequenceId, report: FetchReport, now: float) -> None:
        """What the KV-cache pool gave."""
        self._do(c.FetchFinished(sequence_id, report, now))

    def store_finished(self, order_id: int, now: float) -> None:
        """A store order was carried out."""
        self._do(c.StoreFinished(order_id, now))

    def take_events(self) -> tuple[EngineEvent, ...]:
        """The news."""
        events = self._engine.take_events()
        if events:
            self._note(c.TakeEvents(), events)
        return events

    def _do(self, call: Any) -> Any:  # noqa: ANN401 - any call, and its output
        output, kept, error = perform(call, self._engine)
        self._note(call, kept)
        if error is not None:
            raise error
        return output
