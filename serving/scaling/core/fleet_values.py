"""Events and effects of a fleet; `fleet.py` has the rules.

Further events are an operator's `ScalePool`, `HoldPool` and `ReleasePool`, and a deployer's `DeploymentNotice`. Further
effects are a recorded `LedgerEntry`, a `ScaleAnswer` or `ScaleRefusal` for an operator, and a `ResizeRankGroup` for the
shell of a group.
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
class FleetPolled:
    """A new snapshot of the cluster."""

    snapshot: ClusterSnapshot


@dataclass(frozen=True, slots=True)
class Decided:
    """A scaler's targets."""

    targets: tuple[PoolTarget, ...]


@dataclass(frozen=True, slots=True)
class TargetAccepted:
    """The target of the last `SetTarget` is set."""


@dataclass(frozen=True, slots=True)
class TargetUnanswered:
    """No confirmation of the last `SetTarget`; a later poll shows whether its target is set."""


@dataclass(frozen=True, slots=True)
class GroupRefused:
    """A group refuses a command, or none of its ranks responds."""

    resize: ResizeRankGroup
    refusal: ScaleRefusal


@dataclass(frozen=True, slots=True)
class SetTarget:
    """Set a target; the driver reports `TargetAccepted` or `TargetUnanswered` before the next event.

    Args:
        leaving: names of the serving replicas to remove; those that do not serve yet are removed before them.
    """

    pool: str
    target: int
    leaving: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class StageTargets:
    """Targets for a stage of a deployment, by Serve deployment; empty when the deployment has finished."""

    targets: Mapping[str, int]


FleetEvent = (
    FleetPolled
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
