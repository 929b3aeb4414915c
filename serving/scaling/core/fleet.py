"""Rules for pool sizes: which change is accepted, and which replicas are removed. The same live and in virtual time.

    FleetPolled ► targets in Serve that the board did not set ──► the board's own: waits for nodes, rebalancing
    Decided ───► reduced to what fits, decreases first ───┐                │
    ScalePool ─► refused, or ─────────────────────────────┴─► SetTarget ◄──┘
                                                    TargetAccepted ──► ledger, hold, response
                                                    TargetUnanswered ──► wait; a later poll shows the outcome

A target that the board did not set was set manually, through Ray's own REST route or from a script: it is reduced to
what fits, and holds its pool like any other manual target.

A fleet has no timers: waits, holds and moves are evaluated at each poll; `poll_period_s` is the time until the next.
"""

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from msgspec import structs

from serving.config.scaling import AutoscalerConfig
from serving.errors import LedgerError
from serving.scaling.core.cluster_snapshot import ClusterSnapshot, ReplicaPhase
from serving.scaling.core.decision import LedgerEntry, PoolTarget, ScaleKind
from serving.scaling.core.fleet_values import (
    Decided,
    FleetEffect,
    FleetEvent,
    FleetPolled,
    GroupRefused,
    SetTarget,
    StageTargets,
    TargetAccepted,
    TargetUnanswered,
)
from serving.scaling.core.group_parts import DECODE, GroupParts
from serving.scaling.core.holds import DeploymentWatch, ScalingHolds, refusal_of
from serving.scaling.core.ledger import KeyedValues, Ledger
from serving.scaling.core.node_room import NodeRoom, duration_text
from serving.scaling.core.pool_spread import PoolSpread
from serving.scaling.core.replica_room import ReplicaSize
from serving.values.scaling_operations import MOST_REPLICAS, HoldPool, ReleasePool, ScaleAnswer, ScalePool, ScaleRefusal
from serving.values.system_tally import DeploymentNotice

REST, AUTOSCALER, DEPLOYMENT = "rest", "autoscaler", "deployment"
POLL_PERIOD_S = 1.0
MOVING_PERIOD_S = 0.3
"""Shorter while replicas start or drain, when operators watch."""

_Operation = Generator[FleetEffect, None, None]
"""The effects of one event; after a `SetTarget` the generator resumes once the target is accepted."""


@dataclass(frozen=True, slots=True)
class _Unanswered:
    """A target that Serve has not confirmed. If Serve shows it later, it was not set manually.

    Args:
        hold_s: length of the hold requested with it [s].
    """

    to: PoolTarget
    by: str
    hold_s: float


class ScalingFleet:
    """All pools of one system.

    Args:
        sizes: of one replica of each pool that may be scaled.
        kept: where holds and ledger are stored; None = not stored.
        gateways: whether gateways may run on any host, and are spread like pools.
        parts: rules for decode groups that a scaler resizes; None = groups keep their size.
        anywhere: the NPUs of a replica may be on several hosts; otherwise all are on one host.
        node_came: called with the pool and the time when a node has been added for a pool that waited.
    Attributes:
        snapshot: the last snapshot, with the targets that were set since.
    """

    def __init__(
        self,
        settings: AutoscalerConfig,
        sizes: Mapping[str, ReplicaSize],
        kept: KeyedValues | None = None,
        *,
        gateways: bool = False,
        parts: GroupParts | None = None,
        anywhere: bool = False,
        node_came: Callable[[str, float], None] = lambda _pool, _now: None,
    ) -> None:
        self.snapshot = ClusterSnapshot(0.0)
        self.ledger = Ledger(kept)
        self.holds = ScalingHolds(kept)
        self.room = NodeRoom(settings, sizes, node_came, anywhere=anywhere)
        self.parts = parts
        self._settings = settings
        self._sizes = sizes
        self._deployments = DeploymentWatch(self.holds)
        self._spread = PoolSpread(settings, sizes, self.ledger.last, gateways=gateways)
        self._unanswered: dict[str, _Unanswered] = {}
        self._operation: _Operation | None = None
        self._now = 0.0

    @property
    def poll_period_s(self) -> float:
        """Time until the next poll is due [s]: shorter while replicas start or drain, and before the first poll."""
        return MOVING_PERIOD_S if self.moving else POLL_PERIOD_S

    @property
    def moving(self) -> bool:
        """Whether replicas start or drain in the last snapshot; true before the first."""
        there = self.snapshot.deployments.values()
        return not there or any(one.starting or one.count(ReplicaPhase.DRAINING) for one in there)

    def on(self, event: FleetEvent, now: float) -> list[FleetEffect]:
        """Handle an event.

        Args:
            now: not earlier than that of the previous event [s].
        Returns: effects that the driver must carry out in this order; a `SetTarget` is always the last.
        Raises: LedgerError if a `SetTarget` is pending and the event is not its outcome, or the event is an outcome and
            none is pending.
        """
        if isinstance(event, TargetAccepted | TargetUnanswered) != (self._operation is not None):
            waits = "no" if self._operation is None else "a"
            raise LedgerError(f"{type(event).__name__} while {waits} target waits for its answer")
        self._now = now
        operation, self._operation = self._operation, None
        if isinstance(event, TargetUnanswered):
            return []
        effects: list[FleetEffect] = []
        operation = operation or self._begin(event)
        for effect in operation:
            effects.append(effect)
            if isinstance(effect, SetTarget):
                self._operation = operation
                break
        return effects

    def check(self) -> None:
        """Raises: LedgerError if a target differs from the intended one, or from the one in the ledger."""
        for pool in self._pools():
            target, meant, entry = self._target(pool), self.holds.targets.get(pool), self.ledger.last(pool)
            if target != meant:
                raise LedgerError(f"{pool} has a target of {target}, meant was {meant}")
            in_parts = pool == DECODE and self.parts is not None
            if entry is not None and entry.target != target and not in_parts:
                raise LedgerError(f"{pool} has a target of {target}, the ledger says {entry.target}")

    def shortage(self, pool: str) -> str:
        """Why one replica more than fits cannot be placed."""
        return self.room.shortage(pool, self.snapshot)

    def _begin(self, event: FleetEvent) -> _Operation:
        match event:
            case FleetPolled(snapshot=snapshot):
                return self._poll(snapshot)
            case Decided(targets=targets):
                return self._decide(targets)
            case GroupRefused():
                return self._refused(event)
            case ScalePool():
                return self._scale(event)
            case HoldPool():
                return self._hold(event.pool, event.hold_s, event.by)
            case ReleasePool():
                return self._hold(event.pool, 0.0, event.by)
            case DeploymentNotice():
                return self._deploy(event)
            case _:
                raise TypeError(f"{event!r} begins nothing")

    def _poll(self, snapshot: ClusterSnapshot) -> _Operation:
        self.snapshot = snapshot
        too_large: dict[str, int] = {}
        for pool in self._pools():
            yield from self._notice(pool, too_large)
        self._deployments.polled()
        for pool, meant in too_large.items():
            target, room = self._target(pool), max(self.room.most(pool, self.snapshot), meant)
            reason = f"{target} replicas do not fit, {room} do: {self.shortage(pool)}"
            yield from self._set(PoolTarget(pool, target, room, ScaleKind.FIT, reason), REST)
        if not self._deployments.quiet(self._now):
            yield from self._move()
            yield from self._resize()

    def _notice(self, pool: str, too_large: dict[str, int]) -> Iterator[FleetEffect]:
        """Record a target that the board did not set. If it does not fit, add the intended one to `too_large`."""
        target, meant = self._target(pool), self.holds.targets.get(pool)
        self.holds.aim(pool, target)
        if meant is None or target == meant:
            return
        if self._deployments.explains(pool, target):
            yield self._write(PoolTarget(pool, meant, target, ScaleKind.DEPLOYED, "set by a deployment"), DEPLOYMENT)
            return
        late = self._unanswered.pop(pool, None)
        if late is not None and late.to.target == target:
            if late.by != AUTOSCALER:
                self.holds.set(pool, late.hold_s, late.by, self._now)
            yield self._write(structs.replace(late.to, before=meant), late.by)
            return
        self.holds.set(pool, self._default_hold_s, REST, self._now)
        reason = f"set past the board{_held(self._default_hold_s)}"
        yield self._write(PoolTarget(pool, meant, target, ScaleKind.HELD, reason), REST)
        if target > max(self.room.most(pool, self.snapshot), meant):
            too_large[pool] = meant

    def _move(self) -> _Operation:
        """Set the fleet's own targets: those of ended waits for nodes, and those that spread a pool over hosts."""
        for pool in self._pools():
            held = self.holds.hold(pool, self._now) is not None
            back = self.room.check(pool, self.snapshot, self._now)
            moved = self._spread.check(pool, self.snapshot, self._now, held=held)
            for to in (back, moved):
                if to is not None:
                    yield from self._set(to, AUTOSCALER)
        if (gateways := self._spread.check_gateways(self.snapshot, self._now)) is not None:
            to, leaving = gateways
            yield SetTarget(to.pool, to.target, leaving)
            yield self._write(to, AUTOSCALER)

    def _decide(self, targets: Sequence[PoolTarget]) -> _Operation:
        """Apply a scaler's targets, decreases first, because they free capacity; held pools are left alone."""
        if self._deployments.quiet(self._now):
            return
        for wanted in sorted(targets, key=lambda one: one.target - one.before):
            if self.holds.hold(wanted.pool, self._now) is not None:
                continue
            if self.parts is not None and wanted.pool == DECODE:
                if (parts := self.parts.granted(wanted, self.snapshot)) is not None:
                    yield self._write(parts, AUTOSCALER)
            elif (to := self.room.granted(wanted, self.snapshot)) is not None:
                yield from self._set(to, AUTOSCALER)
        yield from self._resize()

    def _resize(self) -> _Operation:
        """Emit the resizes of decode groups that are due. A group that was resized manually holds the pool."""
        if self.parts is not None:
            if (elsewhere := self.parts.see(self.snapshot)) is not None:
                yield self._hold_parts(elsewhere)
            yield from self.parts.due(self.snapshot)

    def _refused(self, event: GroupRefused) -> _Operation:
        """Hold the pool if a group refused its command; an unreachable group gets it again after the next poll."""
        if self.parts is not None and event.refusal.kind in ("no_room", "not_now"):
            yield self._hold_parts(self.parts.refused(event.resize, event.refusal.message, self.snapshot))

    def _hold_parts(self, to: PoolTarget) -> LedgerEntry:
        self.holds.set(DECODE, self._default_hold_s, REST, self._now)
        return self._write(to, REST)

    def _scale(self, command: ScalePool) -> _Operation:
        pool, replicas, snapshot = command.pool, command.replicas, self.snapshot
        if (other := snapshot.others.get(pool)) is not None and command.by == REST:
            yield SetTarget(pool, replicas)  # gateways, the autoscaler: no capacity check, no hold
            yield ScaleAnswer(pool, other.target, replicas, MOST_REPLICAS, 0.0, f"{pool}: {replicas}")
            return
        refusal = refusal_of(pool, command.hold_s, self._sizes, snapshot) or self._no_room(pool, replicas)
        if refusal is not None:
            yield refusal
            return
        before = self._target(pool)
        hold_s = self._default_hold_s if command.hold_s is None else command.hold_s
        reason = f"asked for by hand{_held(hold_s)}{self.room.wait_of(pool, replicas, snapshot)}"
        to = yield from self._set(PoolTarget(pool, before, replicas, ScaleKind.HELD, reason), command.by, hold_s)
        self.holds.set(pool, hold_s, command.by, self._now)
        yield self._answer(pool, before, f"{pool}: {before} -> {replicas}; {to.reason}")

    def _no_room(self, pool: str, replicas: int) -> ScaleRefusal | None:
        if not 0 <= replicas <= MOST_REPLICAS:
            return ScaleRefusal("invalid", f"{replicas!r} is no number of replicas: give 0 to {MOST_REPLICAS}")
        most = self.room.most(pool, self.snapshot)
        if replicas <= max(most, self._target(pool)):
            return None
        message = f"{replicas} replicas of {pool} do not fit, {most} would: {self.shortage(pool)}"
        return ScaleRefusal("no_room", message, most)

    def _hold(self, pool: str, asked_s: float | None, by: str) -> _Operation:
        refusal = refusal_of(pool, asked_s, self._sizes, self.snapshot)
        if refusal is not None:
            yield refusal
            return
        hold_s = self._settings.manual_hold_s if asked_s is None else asked_s
        target, was_held = self._target(pool), self.holds.hold(pool, self._now) is not None
        self.holds.set(pool, hold_s, by, self._now)
        reason = f"held for {duration_text(hold_s)}" if hold_s else "released" if was_held else "was not held"
        if hold_s or was_held:
            yield self._write(PoolTarget(pool, target, target, ScaleKind.HELD, reason), by)
        yield self._answer(pool, target, f"{pool} stays at {target}: {reason}" if hold_s else f"{pool}: {reason}")

    def _deploy(self, notice: DeploymentNotice) -> _Operation:
        yield StageTargets(self._deployments.on_notice(notice, self.snapshot, self._now))

    def _set(self, to: PoolTarget, by: str, hold_s: float = 0.0) -> Generator[FleetEffect, None, PoolTarget]:
        """Set a target and record it. Returns: the target, whose reason also names the hosts it empties."""
        pool, target = to.pool, to.target
        if to.changed:
            leaving, emptied = self.room.leaving(pool, target, self.snapshot)
            to = structs.replace(to, reason=f"{to.reason}{emptied}")
            self._unanswered[pool] = _Unanswered(to, by, hold_s)
            yield SetTarget(pool, target, leaving)
        self._unanswered.pop(pool, None)
        self._deployments.overruled(pool)
        self.holds.aim(pool, target)
        seen = replace(self.snapshot.deployments[pool], target=target)
        self.snapshot = replace(self.snapshot, deployments={**self.snapshot.deployments, pool: seen})
        yield self._write(to, by)
        return to

    def _write(self, to: PoolTarget, by: str) -> LedgerEntry:
        entry = self.ledger.add(self._now, to.pool, to.before, to.target, to.kind, to.reason, by)
        self.room.note(entry)
        self._spread.note(entry)
        return entry

    def _answer(self, pool: str, before: int, message: str) -> ScaleAnswer:
        left, most = self.holds.left_s(pool, self._now), self.room.most(pool, self.snapshot)
        return ScaleAnswer(pool, before, self._target(pool), most, left, message)

    def _pools(self) -> list[str]:
        """Pools that are deployed, in the configuration's order."""
        return [pool for pool in self._sizes if pool in self.snapshot.deployments]

    def _target(self, pool: str) -> int:
        return self.snapshot.deployments[pool].target

    @property
    def _default_hold_s(self) -> float:
        """Manual targets are held against the policy; without a policy no hold is needed."""
        return self._settings.manual_hold_s if self._settings.policy != "none" else 0.0


def _held(hold_s: float) -> str:
    return f", held for {duration_text(hold_s)}" if hold_s else ""
