"""An engine's decisions for the decision log: each event with its time, and the effects.

An engine has no other inputs: no clock, no randomness, no external state. Read-only methods (snapshot, idle, check) are
not recorded.
"""

from typing import Any

import msgspec

from serving.instance.core.engine import InstanceEngine
from serving.instance.core.events import EngineEffect, EngineEvent, EngineOn, Foresee, Foreseen, Run
from serving.instance.core.settings import EngineSettings
from serving.values.decision_log import CallRecord, Note, checksum, perform, plain
from serving.values.orders import Add, Adopt
from serving.values.step_plan import StepPlan
from serving.version import VERSION


class EngineHeader(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The arguments with which an engine was created."""

    name: str
    settings: EngineSettings
    num_blocks: int
    version: str = ""


def header_of(name: str, engine: InstanceEngine) -> EngineHeader:
    """The header from which a replay creates the same engine."""
    return EngineHeader(name, engine.settings, engine.scheduler.blocks.pool.num_blocks, VERSION)


KeptStep = tuple[str, int, Any, tuple[int, ...], bool, tuple[Any, ...]]


class EngineCall(CallRecord, frozen=True):
    """One event of an engine."""

    event: EngineEvent
    now: float

    def on(self, engine: InstanceEngine) -> list[EngineEffect]:
        """Apply it to an engine."""
        return engine.on(self.event, self.now)

    def keep(self, output: list[EngineEffect]) -> list[object]:
        """Copy plans, since they refer to block tables that grow."""
        return [_kept(one) for one in output]

    def facts(self, kept: list[object]) -> object:
        """The effects; a plan by sequence: start, fed tokens, blocks, each with a checksum, and its sampling."""
        return [_plan_facts(*one) if isinstance(one, tuple) else plain(one) for one in kept]

    def kind(self) -> str:
        """The event's name."""
        return type(self.event).__name__

    def title(self) -> str:
        """The event in a few words."""
        event = self.event
        name = event.spec.sequence_id if isinstance(event, Add | Adopt) else getattr(event, "sequence_id", "")
        return f"{self.kind()}{f' of {name}' if name else ''} at {self.now:.6f} s"


def recorded(engine: InstanceEngine, note: Note) -> EngineOn:
    """An `on` that wraps the engine's own and records each call.

    A `Foresee` without a result is not recorded: it changes no state.

    Args:
        note: receives each call and the kept part of its outcome; must return immediately.
    """

    def on(event: EngineEvent, now: float) -> list[EngineEffect]:
        call = EngineCall(event, now)
        effects, kept, error = perform(call, engine)
        if error is not None:
            note(call, kept)
            raise error
        if effects or not isinstance(event, Foresee):
            note(call, kept)
        return effects  # type: ignore[no-any-return]

    return on


def _kept(effect: EngineEffect) -> object:
    if isinstance(effect, Run | Foreseen):
        return type(effect).__name__, effect.plan.step, _kept_steps(effect.plan)
    return effect


def _kept_steps(plan: StepPlan) -> tuple[KeptStep, ...]:
    return tuple(
        (
            step.sequence_id,
            step.start,
            step.tokens,
            tuple(step.block_table),
            step.sample is not None,
            (step.drafts, step.next_drafts) if step.drafts or step.next_drafts is not None else (),
        )
        for step in plan.sequences
    )


def _plan_facts(kind: str, step: int, steps: tuple[KeptStep, ...]) -> object:
    foreseen = kind == Foreseen.__name__  # its tokens are not known yet
    sequences = [
        (name, start, len(blocks), checksum(blocks, signed=True))
        if foreseen
        else (name, start, len(tokens), checksum(tokens), len(blocks), checksum(blocks, signed=True), samples, *guesses)
        for name, start, tokens, blocks, samples, guesses in steps
    ]
    return {"is": kind, "step": step, "sequences": sequences}
