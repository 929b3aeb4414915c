"""Means by which each kind of fault comes."""

from serving.tools.chaos.result import Event
from serving.tools.chaos.scenario import FROM_INSIDE

_SIGNALS = {"kill": "SIGKILL", "kill_part": "SIGKILL", "freeze": "SIGSTOP", "flood": "another tenant"}


def signal_of(event: Event) -> str:
    """The signal that a process got; what it was instead where there was none. Effects: none."""
    return _SIGNALS.get(event.kind) or ("in the replica" if event.kind in FROM_INSIDE else "clients leave")
