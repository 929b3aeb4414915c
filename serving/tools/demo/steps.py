"""All steps, in the order of the README."""

from collections.abc import Collection

from serving.errors import ConfigError
from serving.tools.demo import cache, chat, kill, load, scale, simulate
from serving.tools.demo.step import Step

STEPS: tuple[Step, ...] = (chat.STEP, cache.STEP, kill.STEP, scale.STEP, load.STEP, simulate.STEP)


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
