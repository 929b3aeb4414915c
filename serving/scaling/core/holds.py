"""Which pools a person keeps from the policy, until when; kept, so that the death of board or head frees none."""

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from hardware.nesting import parse_json
from serving.scaling.core.cluster_snapshot import ClusterSnapshot
from serving.scaling.core.ledger import KeyedValues
from serving.values.scaling_operations import LONGEST_HOLD_S, ScaleRefusal
from serving.values.system_tally import DeploymentNotice

_KEY = "holds"


@dataclass(frozen=True, slots=True)
class ScalingHold:
    """Until when [s since 1970], and who asked for it."""

    until: float
    by: str


class ScalingHolds:
    """Holds by pool, and the target that each pool was last given on purpose.

    Args:
        kept: where they are kept; None = nowhere.
    Attributes:
        warnings: about what was kept and cannot be read.
    """

    def __init__(self, kept: KeyedValues | None = None) -> None:
        self.warnings: list[str] = []
        self._kept = kept
        self._holds: dict[str, ScalingHold] = {}
        self.targets: dict[str, int] = {}
        self.deployed: dict[str, int] = {}
        """Targets that a deployment sets, until they are seen."""
        self._read()

    def hold(self, pool: str, now: float) -> ScalingHold | None:
        """The hold on a pool, if there is one now."""
        hold = self._holds.get(pool)
        return hold if hold is not None and hold.until > now else None

    def left_s(self, pool: str, now: float) -> float:
        """How long a pool is held from now on [s]; 0 = it is not."""
        hold = self.hold(pool, now)
        return hold.until - now if hold is not None else 0.0

    def until(self, now: float) -> dict[str, float]:
        """End of each hold, by pool [s since 1970]."""
        return {pool: hold.until for pool, hold in self._holds.items() if hold.until > now}

    def rows(self, now: float) -> dict[str, dict[str, Any]]:
        """Holds of this moment as pages show them, by pool."""
        return {
            pool: {"left_s": hold.until - now, "by": hold.by} for pool, hold in self._holds.items() if hold.until > now
        }

    def set(self, pool: str, hold_s: float, by: str, now: float) -> None:
        """Hold a pool for so long from now on; 0 releases it.

        Effects: it is kept.
        """
        self._holds[pool] = ScalingHold(now + hold_s, by)
        self._holds = {name: hold for name, hold in self._holds.items() if hold.until > now}
        self._write()

    def aim(self, pool: str, target: int) -> None:
        """The pool's target is this on purpose: if Serve's differs later, somebody else has set it.

        Effects: it is kept if that is news.
        """
        if self.targets.get(pool) != target:
            self.targets[pool] = target
            self._write()

    def expect(self, targets: Mapping[str, int]) -> None:
        """A deployment sets these targets; none = it is over. Effects: it is kept if that is news."""
        if self.deployed != targets:
            self.deployed = dict(targets)
            self._write()

    def _read(self) -> None:
        if self._kept is None:
            return
        try:
            known = parse_json(self._kept.get(_KEY) or b"{}")
            self._holds = {pool: ScalingHold(**hold) for pool, hold in known.get("holds", {}).items()}
            self.targets = {pool: int(target) for pool, target in known.get("targets", {}).items()}
            self.deployed = {pool: int(target) for pool, target in known.get("deployed", {}).items()}
        except (ValueError, TypeError, AttributeError) as error:
            self.warnings.append(f"the holds that were kept cannot be read ({error}): no pool is held")

    def _write(self) -> None:
        if self._kept is None:
            return
        holds = {pool: {"until": hold.until, "by": hold.by} for pool, hold in self._holds.items()}
        self._kept.set(_KEY, json.dumps({"holds": holds, "targets": self.targets, "deployed": self.deployed}).encode())


def refusal_of(pool: str, hold_s: float | None, known: Collection[str], sight: ClusterSnapshot) -> ScaleRefusal | None:
    """Why a pool can be neither scaled nor held so; None = it can.

    Args:
        known: names of pools that the configuration has.
    """
    if pool not in known:
        return ScaleRefusal("unknown_pool", f"there is no pool {pool!r}: {', '.join(known)}")
    if pool not in sight.deployments:
        return ScaleRefusal("unknown_pool", f"{pool} is not deployed yet; try again")
    if hold_s is not None and not 0 <= hold_s <= LONGEST_HOLD_S:
        return ScaleRefusal("invalid", f"a hold of {hold_s} s: give 0 s to {LONGEST_HOLD_S:.0f} s (30 days)")
    return None


# Deployments as the board sees them: the targets that one sets are no person's, and the board's own moves wait.

QUIET_S = 10.0
"""Time from the notice until Serve has the stage, on a busy machine. A target that the board set meanwhile would be
overwritten."""


class DeploymentWatch:
    """Notices of deployments. Time is passed in.

    Args:
        holds: keeps the targets that are expected, so that the board's own death does not forget them.
    """

    def __init__(self, holds: ScalingHolds) -> None:
        self._holds = holds
        self._quiet_until = 0.0
        self._over = False
        self._author = ""
        """Of the deployment that began last."""

    def hear(self, notice: DeploymentNotice, sight: ClusterSnapshot, now: float) -> dict[str, int]:
        """A stage begins, or the deployment is over.

        Returns: the targets to deploy: the notice's, and of all other deployments those that stand.
        """
        if notice.over:
            if notice.author == self._author:  # not one whose lease has passed to another
                self._over, self._quiet_until = True, 0.0
            return {}
        self._author, self._over, self._quiet_until = notice.author, False, now + QUIET_S
        standing = {name: seen.target for name, seen in {**sight.others, **sight.deployments}.items()}
        targets = standing | notice.targets
        self._holds.expect(targets)
        return targets

    def quiet(self, now: float) -> bool:
        """Whether targets of the board's own have to wait."""
        return now < self._quiet_until

    def explains(self, pool: str, target: int) -> bool:
        """Whether a target that was not set by the board is that of a deployment."""
        return self._holds.deployed.get(pool) == target

    def looked(self) -> None:
        """All targets have been compared. Effects: those of a deployment that is over are expected no longer."""
        if self._over:
            self._over = False
            self._holds.expect({})

    def overruled(self, pool: str) -> None:
        """The board has set another target since."""
        left = {name: target for name, target in self._holds.deployed.items() if name != pool}
        self._holds.expect(left)
