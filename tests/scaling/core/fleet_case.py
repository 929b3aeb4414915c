"""A fleet over a cluster made of values: targets come true at once, and every event is followed by a check."""

from dataclasses import replace
from typing import Any

from serving.config.serve import ServeConfig
from serving.scaling.core.decision import LedgerEntry, PoolTarget, ScaleKind
from serving.scaling.core.fleet import ScalingFleet
from serving.scaling.core.fleet_values import (
    Decided,
    FleetEffect,
    FleetEvent,
    FleetPolled,
    SetTarget,
    TargetAccepted,
    TargetUnanswered,
)
from serving.scaling.core.ledger import KeyedValues
from serving.scaling.core.signals import sizes_of
from serving.values.scaling_operations import HoldPool, ScaleAnswer, ScalePool, ScaleRefusal
from tests.scaling.live.case import FakeCluster, config


def wanted(pool: str, before: int, target: int, kind: ScaleKind = ScaleKind.BURST) -> PoolTarget:
    """A scaler's target."""
    return PoolTarget(pool, before, target, kind, "because")


class FleetCase:
    """One fleet and its cluster, looked at once."""

    def __init__(
        self,
        cluster: FakeCluster,
        kept: KeyedValues | None = None,
        policy: str = "slo",
        *,
        whole: ServeConfig | None = None,
        **settings: float | str,
    ) -> None:
        self.cluster = cluster
        whole = whole or config(policy, **settings)
        self.fleet = ScalingFleet(whole.autoscaler, sizes_of(whole), kept, gateways=whole.gateway.replicas > 1)
        self.look()

    def tell(self, event: FleetEvent) -> list[FleetEffect]:
        """Tell the fleet, and do what it asks for. Returns: all effects."""
        cluster = self.cluster
        done = effects = self.fleet.on(event, cluster.now)
        while effects and isinstance(order := effects[-1], SetTarget):
            if cluster.deaf:
                effects = self.fleet.on(TargetUnanswered(), cluster.now)
            else:
                cluster.leaving = order.leaving
                cluster.calls.append((order.pool, order.target))
                cluster.set_past_the_board(order.pool, order.target)
                effects = self.fleet.on(TargetAccepted(), cluster.now)
            done = [*done, *effects]
        self.fleet.check()
        return done

    def look(self, later_s: float = 0.0) -> None:
        """Show it the cluster as it is so much later."""
        self.cluster.now += later_s
        self.tell(FleetPolled(replace(self.cluster.snapshot, at=self.cluster.now)))

    def apply(self, *targets: PoolTarget) -> None:
        """A scaler decides."""
        self.tell(Decided(targets))

    def answer(self, operation: ScalePool | HoldPool) -> ScaleAnswer | ScaleRefusal:
        """An operator's wish."""
        return next(one for one in self.tell(operation) if isinstance(one, ScaleAnswer | ScaleRefusal))

    def scale(
        self, pool: str, replicas: int, hold_s: float | None = None, by: Any = "cli"
    ) -> ScaleAnswer | ScaleRefusal:
        """Scale by hand."""
        return self.answer(ScalePool(pool, replicas, hold_s, by))

    def hold(self, pool: str, hold_s: float | None, by: Any = "cli") -> ScaleAnswer | ScaleRefusal:
        """Hold by hand."""
        return self.answer(HoldPool(pool, hold_s, by))

    def held(self, pool: str) -> tuple[float, str] | None:
        """For how long from now on, and by whom."""
        found = self.fleet.holds.hold(pool, self.cluster.now)
        return None if found is None else (found.until - self.cluster.now, found.by)

    @property
    def entries(self) -> list[LedgerEntry]:
        """The ledger, newest first."""
        return self.fleet.ledger.newest()

    @property
    def rows(self) -> list[tuple[str, int, int, str, str]]:
        """The ledger, oldest first, without times and reasons."""
        return [(one.pool, one.before, one.target, one.kind.value, one.by) for one in reversed(self.entries)]

    def waits_s(self, pool: str = "decode") -> float | None:
        """How long a pool has waited for a node."""
        return self.fleet.room.waited_s(pool, self.cluster.now)
