"""Every call that changes an `InstanceEngine`, as a value: the inputs of one engine, complete.

An engine has no other inputs: no clock (`now` comes along), no chance, no state outside. What only reads (snapshot,
idle, check) is no call.
"""

from typing import Any

import msgspec

from serving.engine.engine import InstanceEngine
from serving.engine.events import EngineAction, EngineEvent, PullOrder
from serving.engine.settings import EngineSettings
from serving.errors import HandoffError, ServingError
from serving.ids import SequenceId
from serving.policy.decision_log import CallRecord, End, checksum, named_error, plain
from serving.policy.pool.outcome import FetchReport
from serving.policy.step_plan import StepPlan, StepResult
from serving.values.sequence import HandoffTicket, SequenceSpec


class EngineHeader(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """What an engine was built with."""

    name: str
    settings: EngineSettings
    num_blocks: int
    version: str = ""


class ErrorText(msgspec.Struct, frozen=True, array_like=True):
    """What engines read of an error."""

    name: str
    text: str

    @classmethod
    def of(cls, error: Exception) -> "ErrorText":
        """An error's name and text."""
        return cls(type(error).__name__, str(error))


class Add(CallRecord, frozen=True):
    """As `InstanceEngine.add`; so for all of these."""

    spec: SequenceSpec
    now: float

    def on(self, engine: InstanceEngine) -> None:
        """Carry it out."""
        engine.add(self.spec, self.now)


class Adopt(CallRecord, frozen=True):
    """A sequence that was prefilled elsewhere."""

    spec: SequenceSpec
    ticket: HandoffTicket
    now: float

    def on(self, engine: InstanceEngine) -> None:
        """Carry it out."""
        engine.adopt(self.spec, self.ticket, self.now)


class Release(CallRecord, frozen=True):
    """The end of a handoff."""

    ticket_id: str
    now: float
    distrust: bool = False

    def on(self, engine: InstanceEngine) -> None:
        """Carry it out."""
        engine.release(self.ticket_id, self.now, distrust=self.distrust)


class Cancel(CallRecord, frozen=True):
    """A sequence that nobody wants any more."""

    sequence_id: SequenceId
    now: float

    def on(self, engine: InstanceEngine) -> None:
        """Carry it out."""
        engine.cancel(self.sequence_id, self.now)


class Drain(CallRecord, frozen=True):
    """Nothing new from here on."""

    def on(self, engine: InstanceEngine) -> None:
        """Carry it out."""
        engine.drain()


class MoveOut(CallRecord, frozen=True):
    """What is inside is to go on elsewhere."""

    now: float

    def on(self, engine: InstanceEngine) -> None:
        """Carry it out."""
        engine.move_out(self.now)


class NextAction(CallRecord, frozen=True):
    """What to do now."""

    now: float

    def on(self, engine: InstanceEngine) -> EngineAction:
        """Carry it out."""
        return engine.next_action(self.now)

    def keep(self, output: EngineAction) -> "KeptAction":
        """The plan refers to block tables that grow: these are copied."""
        plan = output.plan
        return output, _kept(plan) if plan is not None else ()

    def facts(self, kept: "KeptAction") -> object:
        """The plan by sequence: start, tokens fed, blocks, each with a checksum, whether it samples, guesses if any."""
        action, steps = kept
        told: dict[str, object] = {"wake_at": action.wake_at}
        if action.plan is not None:
            told["step"] = action.plan.step
            told["sequences"] = [
                (name, start, len(tokens), checksum(tokens), len(blocks), checksum(blocks), samples, *guesses)
                for name, start, tokens, blocks, samples, guesses in steps
            ]
        moves = {"pulls": action.pulls, "fetches": action.fetches, "stores": action.stores}
        return {**told, **{name: plain(orders) for name, orders in moves.items() if orders}}


KeptStep = tuple[str, int, Any, tuple[int, ...], bool, tuple[Any, ...]]
KeptAction = tuple[EngineAction, tuple[KeptStep, ...]]


def _kept(plan: StepPlan) -> tuple[KeptStep, ...]:
    return tuple(
        (
            step.sequence_id,
            step.start,
            step.tokens,
            tuple(step.block_table),
            step.sample is not None,
            (step.drafts, step.next_drafts) if step.next_drafts is not None else (),
        )
        for step in plan.sequences
    )


class StartPulls(CallRecord, frozen=True):
    """Pulls that there is room for now."""

    now: float

    def on(self, engine: InstanceEngine) -> tuple[PullOrder, ...]:
        """Carry it out."""
        return engine.start_pulls(self.now)


class StepFinished(CallRecord, frozen=True):
    """The result of the plan in flight."""

    result: StepResult
    now: float

    def on(self, engine: InstanceEngine) -> None:
        """Carry it out."""
        engine.step_finished(self.result, self.now)


class Foresee(CallRecord, frozen=True):
    """The step after the one in flight."""

    now: float

    def on(self, engine: InstanceEngine) -> StepPlan | None:
        """Carry it out."""
        return engine.foresee(self.now)

    def keep(self, output: StepPlan | None) -> tuple[KeptStep, ...]:
        """As `NextAction`."""
        return _kept(output) if output is not None else ()

    def facts(self, kept: tuple[KeptStep, ...]) -> object:
        """The plan by sequence: start, blocks with a checksum."""
        return [(name, start, len(blocks), checksum(blocks)) for name, start, _, blocks, *_ in kept]


class StepFollowed(CallRecord, frozen=True):
    """The result of the plan in flight, behind which the next one runs."""

    result: StepResult
    now: float

    def on(self, engine: InstanceEngine) -> EngineAction:
        """Carry it out."""
        return engine.step_followed(self.result, self.now)

    def facts(self, output: EngineAction) -> object:
        """The number of the step that runs, and what is to be stored."""
        assert output.plan is not None
        return {"wake_at": output.wake_at, "step": output.plan.step, "stores": plain(output.stores)}


class StepFailed(CallRecord, frozen=True):
    """The plan in flight could not be executed."""

    error: ErrorText
    now: float

    def on(self, engine: InstanceEngine) -> None:
        """Carry it out."""
        engine.step_failed(named_error(ServingError, self.error.name, self.error.text), self.now)


class PullFinished(CallRecord, frozen=True):
    """A pull ended."""

    sequence_id: SequenceId
    error: ErrorText | None
    moved_bytes: int
    now: float

    def on(self, engine: InstanceEngine) -> None:
        """Carry it out."""
        error = named_error(HandoffError, self.error.name, self.error.text) if self.error is not None else None
        engine.pull_finished(self.sequence_id, error, self.moved_bytes, self.now)


class FetchFinished(CallRecord, frozen=True):
    """What the KV-cache pool gave."""

    sequence_id: SequenceId
    report: FetchReport
    now: float

    def on(self, engine: InstanceEngine) -> None:
        """Carry it out."""
        engine.fetch_finished(self.sequence_id, self.report, self.now)


class StoreFinished(CallRecord, frozen=True):
    """A store order was carried out."""

    order_id: int
    now: float

    def on(self, engine: InstanceEngine) -> None:
        """Carry it out."""
        engine.store_finished(self.order_id, self.now)


class TakeEvents(CallRecord, frozen=True):
    """The news."""

    def on(self, engine: InstanceEngine) -> tuple[EngineEvent, ...]:
        """Carry it out."""
        return engine.take_events()


EngineCall = (
    Add
    | Adopt
    | Release
    | Cancel
    | Drain
    | MoveOut
    | NextAction
    | StartPulls
    | StepFinished
    | Foresee
    | StepFollowed
    | StepFailed
    | PullFinished
    | FetchFinished
    | StoreFinished
    | TakeEvents
    | End
)
