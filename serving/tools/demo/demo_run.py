"""The demo from its first word to its last: starts what the steps need, runs them in order, stops all processes."""

import contextlib
import time
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from loadgen.report import numbers
from serving.errors import ConfigError, ServingError
from serving.tools.demo import cache_step, chat_step, kill_step, load_step, scale_step, simulate_step
from serving.tools.demo.narrator import Interrupts, Keys, Narrator
from serving.tools.demo.stage import DemoRun, DemoSystem, Stage, Step, StepOutcome, own_system

KEYS_HELP = "Enter continues, s skips the next step, q quits; Ctrl-C skips the running step, twice ends the demo."


def run_demo(steps: Sequence[Step], folder: Path, narrator: Narrator, keys: Keys) -> DemoRun:
    """Run the steps.

    Args:
        folder: exists; steps write into it.
    Returns: their outcomes; steps that never started are not included.
    Raises: UnavailableError if the system does not start; KeyboardInterrupt while it starts.
    Effects: a separate system is started if a step needs one; all of its processes have ended.
    """
    begun = time.monotonic()
    run, left = DemoRun([]), list[str]()
    steered = f" {KEYS_HELP}" if keys.awaited else ""
    narrator.title("cloudmatrix demo", f"{_count(len(steps))} on a system of its own.{steered}")
    with Interrupts() as interrupts:
        try:
            with _system(steps, narrator, left) as system:
                run.model = system.model if system else ""
                _take_turns(steps, Stage(narrator, folder, begun, system), keys, interrupts, run)
        except KeyboardInterrupt:  # during the start or the stop of the system
            if not run.outcomes:
                raise
            run.ended_early = True
    run.interrupted = interrupts.leave
    run.left, run.took_s = tuple(left), time.monotonic() - begun
    return run


@contextlib.contextmanager
def _system(steps: Sequence[Step], narrator: Narrator, left: list[str]) -> Iterator[DemoSystem | None]:
    if not any(step.needs_system for step in steps):
        yield None
        return
    with own_system(narrator, left) as system:
        yield system


def _take_turns(steps: Sequence[Step], stage: Stage, keys: Keys, interrupts: Interrupts, run: DemoRun) -> None:
    """All steps in turn, until the reader quits. Effects: fills `run`."""
    for number, step in enumerate(steps, 1):
        stage.narrator.heading(number, len(steps), step.title)
        outcome = _turn(step, stage, keys, waits=number > 1)
        if outcome is None or interrupts.leave:
            run.ended_early = True
            return
        run.outcomes.append(outcome)
        stage.narrator.outcome(outcome.state, outcome_text(outcome))


def _turn(step: Step, stage: Stage, keys: Keys, *, waits: bool) -> StepOutcome | None:
    """One step. Args: waits: for a key, if keys are awaited. Returns: None if the reader quits."""
    begun = time.monotonic()
    try:
        stage.narrator.say(step.text)
        stage.narrator.commands(step.commands)
        choice = _choose(stage, keys) if waits else "go"
        if choice == "leave":
            return None
        if choice == "skip":
            return StepOutcome(step, "skipped", 0.0)
        begun = time.monotonic()
        report = step.run(stage)
    except KeyboardInterrupt:
        stage.narrator.line()
        return StepOutcome(step, "skipped", time.monotonic() - begun)
    except Exception as error:  # any error: the other steps still run, and the exit code reports it
        kind = "" if isinstance(error, ServingError) else f"{type(error).__name__}: "
        return StepOutcome(step, "failed", time.monotonic() - begun, f"{kind}{error}")
    return StepOutcome(step, "failed" if report.problem else "done", time.monotonic() - begun, report.problem, report)


def _count(steps: int) -> str:
    return "One thing," if steps == 1 else f"{steps} things,"


def _choose(stage: Stage, keys: Keys) -> str:
    if keys.awaited:
        stage.narrator.line("Enter: go on    s: skip    q: leave")
    return keys.choose()


def outcome_text(outcome: StepOutcome) -> str:
    """A step's end in a sentence."""
    if outcome.state == "skipped":
        return "skipped"
    if outcome.report is None or outcome.state == "failed":
        return f"failed: {outcome.reason}"
    return f"{outcome.report.summary} ({numbers.duration(outcome.took_s)})"


# All steps, in the order of the README.

STEPS: tuple[Step, ...] = (
    chat_step.STEP,
    cache_step.STEP,
    kill_step.STEP,
    scale_step.STEP,
    load_step.STEP,
    simulate_step.STEP,
)


def chosen_steps(only: Collection[str], skip: Collection[str]) -> tuple[Step, ...]:
    """Steps to run.

    Args:
        only: their names; none = all. skip: names of those to leave out.
    Raises: ConfigError if no step is left.
    """
    steps = tuple(step for step in STEPS if (not only or step.name in only) and step.name not in skip)
    if not steps:
        raise ConfigError("no step is left: give --only or --skip fewer names")
    return steps
