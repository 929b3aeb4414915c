"""Signal, or other means, of each kind of fault."""

from hardware.faults import FaultKind
from serving.faults.scenario import FROM_INSIDE
from serving.faults.schedule import GRAVE
from serving.tools.chaos.result import Event

_SIGNALS = {
    **dict.fromkeys(GRAVE, "SIGKILL"),
    FaultKind.FREEZE: "SIGSTOP",
    FaultKind.FLOOD: "another tenant",
}


def signal_of(event: Event) -> str:
    """Signal that a process received, or its replacement for kinds without one."""
    return _SIGNALS.get(event.kind) or ("in the replica" if event.kind in FROM_INSIDE else "clients leave")
