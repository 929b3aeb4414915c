"""Pause of an instance after a fault, from the published recovery times of a 910C system.

ReviveMoE (arXiv 2602.21140v1) measured the loss of one NPU with DeepSeek V3 on 80 NPUs of a CloudMatrix384. A role
switch consists mostly of loading weights (40.6 s); a restart is the engine alone, with containers and Ray up.
Not measured there, and hence derived or assumed: a whole node, and colocated dies without a redundant copy.
"""

from enum import StrEnum

from hardware.faults.fault import FaultKind
from hardware.spec.catalog import Confidence, Figure
from hardware.units import Seconds

_SOURCE = "ReviveMoE (arXiv 2602.21140v1), recovery table"
_COLOCATED_EXTRA = 12.8 - 10.7
"""Additional time of a colocated die over a split one, with a redundant copy; its compiled graph loads more slowly."""


class DieRole(StrEnum):
    """Role of the lost die."""

    COLOCATED = "colocated"
    """Attention and experts, as in the CloudMatrix384 decode instance."""
    ATTENTION = "attention"
    """Attention only, in a system that splits attention from experts."""
    EXPERT = "expert"
    """Experts only, in such a system."""


class Recovery(StrEnum):
    """How an instance continues without a die."""

    RESTART = "restart"
    """The whole engine starts again, with cached graphs."""
    REDUNDANT_EXPERTS = "redundant_experts"
    """Other copies of its experts exist; the lost ones are dropped."""
    MISSING_EXPERTS = "missing_experts"
    """The lost experts are masked; the router's next choices take their place."""
    ROLE_SWITCH = "role_switch"
    """Another die takes over its experts and loads their weights."""


RESTART = Figure(83.1, "s", _SOURCE)

_SPLIT_EXPERT = {
    Recovery.REDUNDANT_EXPERTS: Figure(10.7, "s", _SOURCE),
    Recovery.MISSING_EXPERTS: Figure(10.8, "s", _SOURCE),
    Recovery.ROLE_SWITCH: Figure(52.7, "s", _SOURCE),
}
_SPLIT_ATTENTION = Figure(10.2, "s", _SOURCE, note="no expert is lost, so the choice makes no difference")
_COLOCATED = {
    Recovery.REDUNDANT_EXPERTS: Figure(12.8, "s", _SOURCE),
    Recovery.MISSING_EXPERTS: Figure(
        10.8 + _COLOCATED_EXTRA, "s", f"{_SOURCE}: split case and what colocated took longer", Confidence.DERIVED
    ),
    Recovery.ROLE_SWITCH: Figure(
        52.7 + _COLOCATED_EXTRA, "s", f"{_SOURCE}: split case and what colocated took longer", Confidence.DERIVED
    ),
}
_NODE = Figure(
    RESTART.value, "s", f"{_SOURCE}: cached restart", Confidence.DERIVED, "the loss of several NPUs was not measured"
)
_NONE = Figure(
    0.0, "s", "xDeepServe 6.2: the engine stays up", Confidence.DERIVED, "what the fault itself costs is extra"
)


def recovery_figure(
    kind: FaultKind,
    recovery: Recovery = Recovery.REDUNDANT_EXPERTS,
    role: DieRole = DieRole.COLOCATED,
) -> Figure:
    """Pause of an affected instance, with the source; see `recovery_time`."""
    if kind is FaultKind.NODE:
        return _NODE
    if kind is FaultKind.KILL:
        return RESTART
    if kind not in (FaultKind.DIE, FaultKind.NPU):
        return _NONE
    if recovery is Recovery.RESTART:
        return RESTART
    if role is DieRole.ATTENTION:
        return _SPLIT_ATTENTION
    return (_COLOCATED if role is DieRole.COLOCATED else _SPLIT_EXPERT)[recovery]


def recovery_time(
    kind: FaultKind,
    recovery: Recovery = Recovery.REDUNDANT_EXPERTS,
    role: DieRole = DieRole.COLOCATED,
) -> Seconds:
    """Pause of an affected instance, detection not included.

    Args:
        kind: a lost die, NPU, node or process stops the instance; after every other fault it continues (slower, or with
            less KV).
        recovery: how it continues; a lost node or process always requires a restart.
        role: role of the lost die.
    Returns: 0 if the engine stays up.
    Source: ReviveMoE (arXiv 2602.21140v1), recovery table: 10.2 to 52.7 s, restart 83.1 s.
    """
    return Seconds(recovery_figure(kind, recovery, role).value)
