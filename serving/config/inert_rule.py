"""A rule about keys without effect: for which commands and under which condition."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from serving.config.serve import ServeConfig

Command = Literal["serve", "deploy", "simulate", "plan"]
"""`deploy` is `serve` on an existing Ray cluster."""

SERVE: tuple[Command, ...] = ("serve", "deploy")
VIRTUAL: tuple[Command, ...] = ("simulate", "plan")
ALL: tuple[Command, ...] = ("serve", "deploy", "simulate", "plan")
PLAN: tuple[Command, ...] = ("plan",)


@dataclass(frozen=True, slots=True)
class Rule:
    """Some keys without effect.

    Args:
        commands: for which commands. when: under which additional condition.
        keys: "section.key", or "section.*" for a whole section.
        why: the condition and the remedy, to follow "has no effect".
        only_settings: apply to `--set` only; a file may contain the keys, since it describes the system for other
            commands too.
    """

    commands: tuple[Command, ...]
    keys: tuple[str, ...]
    why: str
    when: Callable[[ServeConfig], bool] = lambda config: True
    only_settings: bool = False
