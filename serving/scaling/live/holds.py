"""Which pools a person keeps from the policy, until when; kept, so that the death of board or head frees none."""

import json
import logging
from dataclasses import dataclass
from typing import Any

from hardware.nesting import parse_json
from serving.cluster.kept_values import KeptValues

logger = logging.getLogger(__name__)

_KEY = "holds"


@dataclass(frozen=True, slots=True)
class ScalingHold:
    """Until when [s since 1970], and who asked for it."""

    until: float
    by: str


class ScalingHolds:
    """Holds by pool, and the target that each pool was last given on purpose.

    Args:
        kept: where they are kept.
    """

    def __init__(self, kept: KeptValues) -> None:
        self._kept = kept
        self._holds: dict[str, ScalingHold] = {}
        self.targets: dict[str, int] = {}
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

    def _read(self) -> None:
        try:
            known = parse_json(self._kept.get(_KEY) or b"{}")
            self._holds = {pool: ScalingHold(**hold) for pool, hold in known.get("holds", {}).items()}
            self.targets = {pool: int(target) for pool, target in known.get("targets", {}).items()}
        except (ValueError, TypeError, AttributeError) as error:
            logger.warning("the holds that were kept cannot be read (%s): no pool is held", error)

    def _write(self) -> None:
        holds = {pool: {"until": hold.until, "by": hold.by} for pool, hold in self._holds.items()}
        self._kept.set(_KEY, json.dumps({"holds": holds, "targets": self.targets}).encode())
