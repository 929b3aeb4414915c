"""A stage without a system, and small steps."""

import io
from collections.abc import Callable
from pathlib import Path

from rich.console import Console

from serving.tools.demo.narrator import Narrator
from serving.tools.demo.stage import Stage, Step, StepReport

REPORT = StepReport("It worked.", ("time", "1.2 s"), ("a line",))


def narrator_to(out: io.StringIO) -> Narrator:
    """A narrator that writes into a text."""
    return Narrator(Console(file=out, width=120, force_terminal=False))


def bare_stage(folder: Path, out: io.StringIO | None = None) -> Stage:
    """A stage for steps that need no system."""
    return Stage(narrator_to(out or io.StringIO()), folder, 0.0)


def small_step(name: str, run: Callable[[Stage], StepReport] = lambda _: REPORT) -> Step:
    """A step that needs no system."""
    return Step(name, f"Title of {name}", f"Text of {name}.", (f"command {name}",), run, needs_system=False)
