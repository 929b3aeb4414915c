"""Which pools a person keeps from the policy, until when; kept, so that the death of board or head frees none."""

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from hardware.nesting import parse_json
from serving.scaling.core.cluster_snapshot import ClusterSnapshot
from serving.scaling.core.kept_rows import KeyedValues
from serving.values.scaling import LONGEST_HOLD_S, ScaleRefusal

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
