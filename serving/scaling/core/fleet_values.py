"""Events and effects of a fleet; `fleet.py` has the rules.

Events are also an operator's `ScalePool`, `HoldPool` and `ReleasePool`, and a deployer's `DeploymentNotice`; effects
are also a `LedgerEntry`, which was written down, an operator's `ScaleAnswer` or `ScaleRefusal`, and a `ResizeRankGroup`
for the shell of a group.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from serving.scaling.core.cluster_snapshot import ClusterSnapshot
from serving.scaling.core.decision import LedgerEntry, PoolTarget
from serving.values.scaling_operations import (
    HoldPool,
    ReleasePool,
    ResizeRankGroup,
    ScaleAnswer,
    ScalePool,
    ScaleRefusal,
)
from serving.values.system_tally import DeploymentNotice


@dataclass(frozen=True, slots=True)
class FleetLooked:
    """The cluster as it is now."""

    sight: ClusterSnapshot


@dataclass(frozen=True, slots=True)
class Decided:
    """A scaler's targets."""

    targets: tuple[PoolTarget, ...]


@dataclass(frozen=True, slots=True)
class TargetAccepted:
    """The target of the last `SetTarget` is set."""


@dataclass(frozen=True, slots=True)
class TargetUnanswered:
    """No answer to the last `SetTarget`; a later look shows whether its target is set."""


@dataclass(frozen=True, slots=True)
class GroupRefused:
    """A group does not take an order, or none of its ranks answers."""

    resize: ResizeRankGroup
    refusal: ScaleRefusal


@dataclass(frozen=True, slots=True)
class SetTarget:
    """Set a target; it is answered with `TargetAccepted` or `TargetUnanswered` before the next event.

    Args:
        leaving: names of the serving replicas that leave; those that do not serve yet leave before them.
    """

    pool: str
    target: int
    leaving: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class StageTargets:
    """Targets that a stage of a deployment is to set, by deployment; empty when the deployment is over."""

    targets: Mapping[str, int]


FleetEvent = (
    FleetLooked
    | Decided
    | TargetAccepted
    | TargetUnanswered
    | GroupRefused
    | ScalePool
    | HoldPool
    | ReleasePool
    | DeploymentNotice
)
FleetEffect = SetTarget | ResizeRankGroup | StageTargets | LedgerEntry | ScaleAnswer | ScaleRefusal
