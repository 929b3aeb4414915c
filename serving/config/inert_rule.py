"""A rule about keys without effect: in which commands, under which condition."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from serving.config.serve import ServeConfig

Command = Literal["serve", "deploy", "simulate", "plan"]
"""`deploy`: `serve` on a Ray that is there."""

SERVE: tuple[Command, ...] = ("serve", "deploy")
VIRTUAL: tuple[Command, ...] = ("simulate", "plan")
ALL: tuple[Command, ...] = ("serve", "deploy", "simulate", "plan")
PLAN: tuple[Command, ...] = ("plan",)


@dataclass(frozen=True, slots=True)
class Rule:
    """Some keys without effect.

    Args:
        commands: where. when: under which further condition.
        keys: "section.key", or "section.*" for all of a section.
        why: the condition and the way out, to follow "has no effect".
        only_settings: keys of a file are no mistake, since the file describes the system for other commands, too; only
            `--set` is.
    """

    commands: tuple[Command, ...]
    keys: tuple[str, ...]
    why: str
    when: Callable[[ServeConfig], bool] = lambda config: True
    only_settings: bool = False
