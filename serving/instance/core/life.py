"""Shutdown rules of an instance, live or in virtual time.

    SERVING ── BeginLeaving ──► DRAINING ── nothing inside ──► EMPTY ── Stored, or STORE_DEADLINE_S ──► GONE
                                 │    ▲                         │
                                 │    └────── taken back ───────┘
                                 └ after `drain_s`, then every OFFER_PERIOD_S: OFFER

A draining instance accepts no new sequences. Its sequences may end within `drain_s`; then they are offered to other
instances periodically, and one that no instance can take continues here to its end. An empty instance stores its last
full blocks in the KV-cache pool, with a deadline because they are only a cache.
"""

from dataclasses import dataclass
from enum import Enum

from serving.errors import LedgerError

OFFER_PERIOD_S = 2.0
"""Interval at which a draining instance offers its sequences to others [s]; each offer pauses it for some milliseconds.
"""
STORE_DEADLINE_S = 5.0
"""How long an empty instance waits for its last blocks to reach the KV-cache pool."""
STORED_LOOK_S = 0.02
"""Interval at which the engine of an empty instance is polled for the storing of its last blocks [s]."""


class LifePhase(Enum):
    """See the diagram in the module's docstring."""

    SERVING = "serving"
    DRAINING = "draining"
    EMPTY = "empty"
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class BeginLeaving:
    """Start to shut the instance down.

    Args:
        drain_s: how long sequences may continue here, in case they end soon [s].
    """

    drain_s: float


@dataclass(frozen=True, slots=True)
class Inside:
    """Number of sequences in the instance, in any state."""

    sequences: int


@dataclass(frozen=True, slots=True)
class Stored:
    """No block is being stored in the KV-cache pool."""


@dataclass(frozen=True, slots=True)
class Wake:
    """The event that is due at `next_wake`."""


class LifeEffect(Enum):
    """Commands to the driver."""

    STOP_ADMITTING = "stop admitting"
    """Accept no new sequences, notify gateways, and send the engine `Drain`."""
    OFFER = "offer"
    """Move sequences to other instances: send `MoveOut`."""
    AWAIT_STORES = "await stores"
    """Answer with `Stored` as soon as it is true; look every `STORED_LOOK_S`."""
    GO = "go"
    """Stop the instance."""


LifeEvent = BeginLeaving | Inside | Stored | Wake


class InstanceLife:
    """The life cycle of one instance, starting when it serves."""

    def __init__(self) -> None:
        self.phase = LifePhase.SERVING
        self._inside = 0
        self._wake_at: float | None = None

    @property
    def leaving(self) -> bool:
        """Whether it accepts no new sequences."""
        return self.phase is not LifePhase.SERVING

    def on(self, event: LifeEvent, now: float) -> list[LifeEffect]:
        """Process an event.

        Args:
            now: not earlier than for the previous event [s].
        Returns: commands to the driver, in this order.
        """
        effects: list[LifeEffect] = []
        match event:
            case BeginLeaving(drain_s=drain_s) if self.phase is LifePhase.SERVING:
                self._enter(LifePhase.DRAINING, now + drain_s)
                effects.append(LifeEffect.STOP_ADMITTING)
            case Inside(sequences=sequences):
                self._inside = sequences
                if sequences and self.phase is LifePhase.EMPTY:
                    self._enter(LifePhase.DRAINING, now + OFFER_PERIOD_S)
            case Stored() if self.phase is LifePhase.EMPTY:
                return [self._go()]
            case Wake() if self._wake_at is not None and now >= self._wake_at:
                if self.phase is LifePhase.EMPTY:
                    return [self._go()]
                self._wake_at = now + OFFER_PERIOD_S
                effects += [LifeEffect.OFFER] if self._inside else []
        if self.phase is LifePhase.DRAINING and not self._inside:
            self._enter(LifePhase.EMPTY, now + STORE_DEADLINE_S)
            effects.append(LifeEffect.AWAIT_STORES)
        return effects

    def next_wake(self) -> float | None:
        """Time at which `Wake` is due; None = never."""
        return self._wake_at

    def check(self) -> None:
        """Raises: LedgerError if phase, sequences and wake-up are inconsistent."""
        timed = self.phase in (LifePhase.DRAINING, LifePhase.EMPTY)
        if timed != (self._wake_at is not None):
            raise LedgerError(f"an instance that is {self.phase.value} wakes at {self._wake_at}")
        if self.phase is LifePhase.DRAINING and not self._inside:
            raise LedgerError("an instance drains although it has no sequences")
        if self.phase in (LifePhase.EMPTY, LifePhase.GONE) and self._inside:
            raise LedgerError(f"{self._inside} sequences are in an instance that is {self.phase.value}")

    def _enter(self, phase: LifePhase, wake_at: float) -> None:
        self.phase, self._wake_at = phase, wake_at

    def _go(self) -> LifeEffect:
        self.phase, self._wake_at = LifePhase.GONE, None
        return LifeEffect.GO
