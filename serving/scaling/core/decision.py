"""Decision of a scaler: a target for every pool with its kind and reason, and the ledger entry of a change."""

from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any, Protocol

from msgspec import Struct

from serving.values.signals import ScalingSignals


class ScaleKind(Enum):
    """Category of a target's reason, for filters and colours; `reason` has the text."""

    STAY = "stay"
    BURST = "burst"
    """Up at once, because of a queue or SLO violations."""
    FORECAST = "forecast"
    """Up or down by the slow plan."""
    HELD = "held"
    """Set or kept by a manual override."""
    WAKE = "wake"
    """Up from zero, because requests wait."""
    ZERO = "zero"
    """Down to zero after a long time without requests."""
    YIELD = "yield"
    """Prefill gives NPUs to decode: "kill P to keep D". Source: xDeepServe (arXiv 2508.02520) section 6.2."""
    FIT = "fit"
    """Limited to what fits on the hardware, or to the pool's bounds."""
    SPREAD = "spread"
    """One replica more, then one less, to spread replicas over more hosts."""
    DEPLOYED = "deployed"
    """The target of a deployment: its configuration's, or the current one when it started."""


class PoolTarget(Struct, frozen=True, gc=False):
    """One pool's target from now on; `before` is what it was."""

    pool: str
    before: int
    target: int
    kind: ScaleKind
    reason: str

    @property
    def changed(self) -> bool:
        """Whether the target differs from `before`."""
        return self.target != self.before


class ScalingDecision(Struct, frozen=True, gc=False):
    """Targets of one poll, one for each pool of the signals; the KV-cache pool (`kvcache`), if any, is last."""

    now: float
    targets: tuple[PoolTarget, ...]

    @property
    def changes(self) -> tuple[PoolTarget, ...]:
        """Targets that differ from `before`."""
        return tuple(target for target in self.targets if target.changed)


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """One recorded change.

    Args:
        id: increasing from 1 and unique within one start of the system.
        at: seconds since 1970.
        by: `autoscaler`, `cli`, `page`, `rest` or `deployment`.
    """

    id: int
    at: float
    pool: str
    before: int
    target: int
    kind: ScaleKind
    reason: str
    by: str

    def row(self) -> dict[str, Any]:
        """The entry ready for JSON, for pages and for storage."""
        return {**asdict(self), "kind": self.kind.value}

    kept = row


class Scaler(Protocol):
    """A scaling policy with history, called once per period. It never blocks and reads no clock."""

    def decide(self, signals: ScalingSignals) -> ScalingDecision:
        """Targets from now on.

        Args:
            signals: later than those of the previous call.
        """
        ...
