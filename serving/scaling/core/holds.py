"""Manual overrides (holds) of the policy, by pool; stored, so that they survive the loss of the board or the head."""

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
    """A manual override of one pool.

    Args:
        until: end [s since 1970].
        by: origin of the request, as in `LedgerEntry`.
    """

    until: float
    by: str


class ScalingHolds:
    """Holds by pool, and the intended target of each pool.

    Args:
        kept: where they are stored; None = not stored.
    Attributes:
        warnings: about stored holds that cannot be read.
    """

    def __init__(self, kept: KeyedValues | None = None) -> None:
        self.warnings: list[str] = []
        self._kept = kept
        self._holds: dict[str, ScalingHold] = {}
        self.targets: dict[str, int] = {}
        self.deployed: dict[str, int] = {}
        """Targets that a deployment sets, until Serve shows them."""
        self._read()

    def hold(self, pool: str, now: float) -> ScalingHold | None:
        hold = self._holds.get(pool)
        return hold if hold is not None and hold.until > now else None

    def left_s(self, pool: str, now: float) -> float:
        """Remaining time of a pool's hold [s]; 0 = the pool is not held."""
        hold = self.hold(pool, now)
        return hold.until - now if hold is not None else 0.0

    def until(self, now: float) -> dict[str, float]:
        """End of each hold, by pool [s since 1970]."""
        return {pool: hold.until for pool, hold in self._holds.items() if hold.until > now}

    def rows(self, now: float) -> dict[str, dict[str, Any]]:
        """Current holds as pages show them, by pool."""
        return {
            pool: {"left_s": hold.until - now, "by": hold.by} for pool, hold in self._holds.items() if hold.until > now
        }

    def set(self, pool: str, hold_s: float, by: str, now: float) -> None:
        """Hold a pool for `hold_s` seconds from now; 0 releases it. The change is stored."""
        self._holds[pool] = ScalingHold(now + hold_s, by)
        self._holds = {name: hold for name, hold in self._holds.items() if hold.until > now}
        self._write()

    def aim(self, pool: str, target: int) -> None:
        """Record and store the intended target of a pool: if Serve's differs later, it was set without the board."""
        if self.targets.get(pool) != target:
            self.targets[pool] = target
            self._write()

    def expect(self, targets: Mapping[str, int]) -> None:
        """Record and store the targets that a deployment sets; empty = the deployment has finished."""
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


def refusal_of(
    pool: str, hold_s: float | None, known: Collection[str], snapshot: ClusterSnapshot
) -> ScaleRefusal | None:
    """Why a request to scale or hold a pool is invalid; None = it is valid.

    Args:
        known: names of the configured pools.
    """
    if pool not in known:
        return ScaleRefusal("unknown_pool", f"there is no pool {pool!r}: {', '.join(known)}")
    if pool not in snapshot.deployments:
        return ScaleRefusal("unknown_pool", f"{pool} is not deployed yet; try again")
    if hold_s is not None and not 0 <= hold_s <= LONGEST_HOLD_S:
        return ScaleRefusal("invalid", f"a hold of {hold_s} s: give 0 s to {LONGEST_HOLD_S:.0f} s (30 days)")
    return None


# Deployments: the targets that one sets are not manual, and the board's own moves wait while it runs.

QUIET_S = 10.0
"""Time from the notice until Serve has the stage, on a busy node. A target that the board set within this time would be
overwritten."""


class DeploymentWatch:
    """Notices of deployments. Time is passed in.

    Args:
        holds: stores the expected targets, so that they survive a restart of the board.
    """

    def __init__(self, holds: ScalingHolds) -> None:
        self._holds = holds
        self._quiet_until = 0.0
        self._over = False
        self._author = ""
        """Author of the latest deployment."""

    def on_notice(self, notice: DeploymentNotice, snapshot: ClusterSnapshot, now: float) -> dict[str, int]:
        """A stage starts, or the deployment has finished.

        Returns: the targets to deploy: the notice's, and the current ones of all other Serve deployments.
        """
        if notice.over:
            if notice.author == self._author:  # not one whose lease has passed to another
                self._over, self._quiet_until = True, 0.0
            return {}
        self._author, self._over, self._quiet_until = notice.author, False, now + QUIET_S
        standing = {name: seen.target for name, seen in {**snapshot.others, **snapshot.deployments}.items()}
        targets = standing | notice.targets
        self._holds.expect(targets)
        return targets

    def quiet(self, now: float) -> bool:
        """Whether the board must not set targets of its own now."""
        return now < self._quiet_until

    def explains(self, pool: str, target: int) -> bool:
        """Whether a target that the board did not set is that of a deployment."""
        return self._holds.deployed.get(pool) == target

    def polled(self) -> None:
        """All targets of a poll have been compared: stop expecting those of a finished deployment."""
        if self._over:
            self._over = False
            self._holds.expect({})

    def overruled(self, pool: str) -> None:
        """The board has set another target for the pool since: stop expecting the deployment's."""
        left = {name: target for name, target in self._holds.deployed.items() if name != pool}
        self._holds.expect(left)
