"""An engine driven by hand: a method for each event, commands as return values, events kept until they are taken."""

from dataclasses import dataclass

from serving.errors import HandoffError, ServingError
from serving.ids import SequenceId
from serving.instance.core import events as e
from serving.instance.core.engine import InstanceEngine
from serving.instance.core.settings import EngineSettings
from serving.values.news import Lost, Refused
from serving.values.orders import Add, Adopt, Cancel, Release
from serving.values.pool_outcome import FetchReport
from serving.values.sequence import HandoffTicket, SequenceSpec
from serving.values.step_plan import StepPlan, StepResult


@dataclass
class Orders:
    """Commands that resulted from an event. `plan` is the step to run."""

    pulls: tuple[e.PullOrder, ...] = ()
    plan: StepPlan | None = None
    wake_at: float | None = None
    fetches: tuple[e.FetchOrder, ...] = ()
    stores: tuple[e.StoreOrder, ...] = ()


class EngineCalls(InstanceEngine):
    """One engine; `now` is the time of each event."""

    def __init__(self, settings: EngineSettings, num_blocks: int) -> None:
        super().__init__(settings, num_blocks)
        self.driven: e.EngineOn = self.on
        """Takes the events; may be replaced by one that records them."""
        self._news: list[e.EngineMessage] = []

    def tell(self, event: e.EngineEvent, now: float) -> Orders:
        """Deliver any event. Effects: outgoing events are kept."""
        told = Orders()
        for effect in self.driven(event, now):
            match effect:
                case e.Run(plan=plan) | e.Foreseen(plan=plan):
                    told.plan = plan
                case e.WakeAt(at=at):
                    told.wake_at = at
                case e.PullOrder():
                    told.pulls += (effect,)
                case e.FetchOrder():
                    told.fetches += (effect,)
                case e.StoreOrder():
                    told.stores += (effect,)
                case _:
                    self._news.append(effect)
        return told

    def take_events(self) -> tuple[e.EngineMessage, ...]:
        """All outgoing events since the last call."""
        news, self._news = tuple(self._news), []
        return news

    def add(self, spec: SequenceSpec, now: float) -> Refused | Lost | None:
        """Add a sequence. Returns: the refusal, if it is refused; it is then not kept as an event."""
        return self._refusal(Add(spec), now)

    def adopt(self, spec: SequenceSpec, ticket: HandoffTicket, now: float) -> Refused | Lost | None:
        """Adopt a sequence, like `add`."""
        return self._refusal(Adopt(spec, ticket), now)

    def _refusal(self, order: Add | Adopt, now: float) -> Refused | Lost | None:
        effects = self.driven(order, now)
        assert len(effects) <= 1
        for effect in effects:
            assert isinstance(effect, Refused | Lost)
            return effect
        return None

    def release(self, ticket_id: str, now: float, *, distrust: bool = False) -> None:
        self.tell(Release(ticket_id, distrust), now)

    def cancel(self, sequence_id: SequenceId, now: float) -> None:
        self.tell(Cancel(sequence_id), now)

    def drain(self) -> None:
        self.tell(e.Drain(), 0.0)

    def move_out(self, now: float) -> None:
        self.tell(e.MoveOut(), now)

    def next_action(self, now: float) -> Orders:
        return self.tell(e.NextStep(), now)

    def start_pulls(self, now: float) -> tuple[e.PullOrder, ...]:
        return self.tell(e.PullsNow(), now).pulls

    def step_finished(self, result: StepResult, now: float) -> None:
        self.tell(e.StepDone(result), now)

    def foresee(self, now: float) -> StepPlan | None:
        return self.tell(e.Foresee(), now).plan

    def step_followed(self, result: StepResult, now: float) -> Orders:
        """Run a step. Returns: the commands, together with the plan that runs now."""
        plan = self._foreseen.plan if self._foreseen is not None else None
        told = self.tell(e.StepFollowed(result), now)
        told.plan = plan
        return told

    def step_failed(self, error: ServingError, now: float) -> None:
        self.tell(e.StepFailed(e.failure(error)), now)

    def pull_finished(self, sequence_id: SequenceId, error: HandoffError | None, moved_bytes: int, now: float) -> None:
        self.tell(e.PullDone(sequence_id, moved_bytes, e.failure(error) if error is not None else None), now)

    def fetch_finished(self, sequence_id: SequenceId, report: FetchReport, now: float) -> None:
        self.tell(e.FetchDone(sequence_id, report), now)

    def store_finished(self, order_id: int, now: float) -> None:
        self.tell(e.StoreDone(order_id), now)
