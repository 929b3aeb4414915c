"""Decision of a scaler: a target for every pool, each with its kind and its reason; and what is written down of it."""

from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any, Protocol

from msgspec import Struct

from serving.values.signals import ScalingSignals


class ScaleKind(Enum):
    """Why a target is what it is, for filters and colours; the reason says it in words."""

    STAY = "stay"
    BURST = "burst"
    """Up at once: a queue or broken promises cannot wait."""
    FORECAST = "forecast"
    """Up or down by the slow plan."""
    HELD = "held"
    """A person's target stands."""
    WAKE = "wake"
    """From zero, because somebody waits."""
    ZERO = "zero"
    """To zero, because nobody came for long."""
    YIELD = "yield"
    """Prefill gives NPUs to decode: "kill P to keep D". Source: xDeepServe (arXiv 2508.02520) section 6.2."""
    FIT = "fit"
    """Down to what the hardware has room for."""
    SPREAD = "spread"
    """One more, then one less, so that replicas lie on more hosts."""
    DEPLOYED = "deployed"
    """The target of a deployment: its configuration's, or the one that stood when it began."""


class PoolTarget(Struct, frozen=True, gc=False):
    """One pool's target from now on; `before` is what it was."""

    pool: str
    before: int
    target: int
    kind: ScaleKind
    reason: str

    @property
    def changed(self) -> bool:
        """Whether anything is to be done."""
        return self.target != self.before


class ScalingDecision(Struct, frozen=True, gc=False):
    """One look's answer: a target for each pool of the signals, the KV-cache pool (`kvcache`) last if there is one."""

    now: float
    targets: tuple[PoolTarget, ...]

    @property
    def changes(self) -> tuple[PoolTarget, ...]:
        """Only what is to be done."""
        return tuple(target for target in self.targets if target.changed)


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """One change.

    Args:
        id: counts up from 1 and never repeats within one start of the system.
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
        """Ready for JSON."""
        return {**asdict(self), "kind": self.kind.value}

    kept = row


class Scaler(Protocol):
    """Looks once a period and answers. Remembers what it saw; never waits, never asks for the time."""

    def decide(self, signals: ScalingSignals) -> ScalingDecision:
        """Targets from now on.

        Args:
            signals: later than those of the look before.
        """
        ...
