"""The one place that changes the size of a pool, and what it must know for that. No Ray: a port reaches the cluster.

Looks once a second, or when asked. A target of Serve's that nobody set here was set by hand past us, by Ray's own REST
route or from a script: it is brought down to what fits, and holds its pool like any other target set by hand.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from typing import Any

from serving.config.serve import ServeConfig
from serving.deadline import within
from serving.scaling.core.busy import BusyShares
from serving.scaling.core.cluster_snapshot import ClusterSnapshot, ReplicaPhase
from serving.scaling.core.decision import PoolTarget, ScaleKind
from serving.scaling.core.deployment_watch import DeploymentWatch
from serving.scaling.core.duration_text import duration_text
from serving.scaling.core.event_log import EventLog
from serving.scaling.core.experts_state import experts_of
from serving.scaling.core.fleet import granted, in_order, order, with_target
from serving.scaling.core.gateways import Gateways
from serving.scaling.core.history import History
from serving.scaling.core.holds import ScalingHolds, refusal_of
from serving.scaling.core.kept_rows import KeyedValues
from serving.scaling.core.ledger import Ledger
from serving.scaling.core.measure import Abilities
from serving.scaling.core.node_room import NodeRoom
from serving.scaling.core.page_state import SHOWN, hardware, host_rows, pool_rows
from serving.scaling.core.policy_time import autoscaler_row
from serving.scaling.core.pool_spread import PoolSpread
from serving.scaling.core.signals import CacheTotals, scaling_signals, sizes_of
from serving.scaling.core.tally_keeper import TallyKeeper
from serving.scaling.live.clock import steady_s
from serving.scaling.live.cluster_port import ClusterPort, ClusterSilentError
from serving.scaling.live.group_orders import order_group
from serving.values.deployment import DeploymentNotice
from serving.values.scaling import (
    MOST_REPLICAS,
    Answer,
    DrainGroupRank,
    HoldPool,
    PoolOperation,
    ReadDecisions,
    ReadEvents,
    ReadExperts,
    ReadHistory,
    ReadPools,
    RebalanceGroup,
    ReleasePool,
    ResizeRankGroup,
    ScaleAnswer,
    ScalePool,
    ScaleRefusal,
)
from serving.values.signals import ScalingSignals
from serving.values.traffic import BoardNews, GatewayReport

logger = logging.getLogger(__name__)

REST, AUTOSCALER, DEPLOYMENT = "rest", "autoscaler", "deployment"


class ScalingBoard:
    """ClusterSnapshot, traffic, holds, ledger, and the path. Belongs to one event loop.

    Args:
        kept: where ledger and holds are kept.
        clock: seconds since 1970; never goes back.
    """

    def __init__(
        self, config: ServeConfig, port: ClusterPort, kept: KeyedValues, clock: Callable[[], float] = steady_s
    ) -> None:
        self._config = config
        self._port = port
        self._clock = clock
        self._sizes = sizes_of(config)
        self._ledger = Ledger(kept)
        self._holds = ScalingHolds(kept)
        self._gateways = Gateways()
        self._abilities = Abilities()
        self._cache = CacheTotals()
        self._events = EventLog(round(clock()), kept)
        for warning in (*self._ledger.warnings, *self._holds.warnings, *self._events.warnings):
            logger.warning("%s", warning)
        self._deployments = DeploymentWatch(self._holds, self._events)
        self._busy = BusyShares()
        self._history = History()
        self._tally = TallyKeeper()
        self._room = NodeRoom(config.autoscaler, self._sizes, self._tally.starts.node_came)
        self._spread = PoolSpread(
            config.autoscaler, self._sizes, self._ledger.last, gateways=config.gateway.replicas > 1
        )
        self._sight = ClusterSnapshot(0.0)
        self._lock = asyncio.Lock()
        self._asked = asyncio.Event()
        self._starved: set[str] = set()
        self._looked_for_policy = 0.0
        self._unanswered: dict[str, tuple[PoolTarget, str, float]] = {}
        """What Serve was asked for, by whom, and for how long it was to be held [s], without an answer: if it comes all
        the same, nobody set it past us."""

    async def look(self, older_than_s: float = 0.0) -> None:
        """Look now, unless the last look is younger than that.

        Raises: ClusterSilentError.
        Effects: what was set past us becomes a hold, cut down to what fits.
        """
        async with self._lock:
            if self._clock() - self._sight.at >= older_than_s:
                await self._look()

    async def look_first(self) -> None:
        """Look, unless there was a look before: for questions that come as soon as the board is there.

        Raises: ClusterSilentError.
        """
        if not self._sight.at:
            await self.look()

    @property
    def moving(self) -> bool:
        """Whether replicas come or go, as far as the last look saw; true before the first."""
        there = self._sight.deployments.values()
        return not there or any(one.starting or one.count(ReplicaPhase.DRAINING) for one in there)

    def report(self, report: GatewayReport) -> BoardNews:
        """A gateway's numbers. Returns: what it does not know itself, for its status page."""
        now = self._clock()
        self._gateways.report(report, now)
        for notice in report.notices:
            self._events.hear(notice, now)
        if report.starved and report.gateway not in self._starved:
            self._asked.set()
        (self._starved.add if report.starved else self._starved.discard)(report.gateway)
        self._starved &= self._gateways.names
        targets = {pool: seen.target for pool, seen in self._sight.deployments.items()}
        wakes = self._autoscaler_row(now)["alive"]
        asleep = tuple(
            pool for pool, target in targets.items() if wakes and not target and not self._holds.hold(pool, now)
        )
        tally = self._tally.tally(self._sight, self._ledger.counts) if self._sight.at else None
        hosts = host_rows(self._config, self._sight, now)
        return self._gateways.news(report.gateway, targets, now, asleep, tally, hosts)

    async def next_signals(self, period_s: float) -> ScalingSignals:
        """Signals for a scaler, after so long in real time, or once requests wait for a role without instance.

        Raises: ClusterSilentError.
        """
        self._looked_for_policy = self._clock()
        with contextlib.suppress(TimeoutError):
            await within(self._asked.wait(), period_s)
        self._asked.clear()
        await self.look()
        now = self._looked_for_policy = self._clock()
        held = self._holds.until(now)
        traffic = self._gateways.traffic(now)
        node_s = self._room.usual_s
        return scaling_signals(self._config, self._sight, traffic, self._abilities, self._cache, held, node_s)

    async def answer(self, operation: PoolOperation[Answer]) -> Answer | ScaleRefusal:
        """Do or tell what is asked.

        Raises: ClusterSilentError; nothing was changed then.
        """
        told: Any
        match operation:
            case ReadPools() | ReadExperts():
                with contextlib.suppress(ClusterSilentError):
                    await self.look_first()
                told = self.state() if isinstance(operation, ReadPools) else self._experts()
            case ReadDecisions():
                told = self.decisions(operation)
            case ReadEvents():
                told = self.events(operation)
            case ReadHistory():
                told = self._history.newer(operation.after)
            case RebalanceGroup() | DrainGroupRank() | ResizeRankGroup():
                told = await order_group(operation, self._sight, self._port.order)
            case ScalePool():
                told = await self._scale(operation)
            case HoldPool():
                told = await self._hold(operation)
            case ReleasePool():
                told = await self._hold(HoldPool(operation.pool, 0.0, operation.by))
            case _:
                raise TypeError(f"{operation!r} is no operation on the pools")
        answer: Answer | ScaleRefusal = told
        return answer

    async def _scale(self, wish: ScalePool) -> ScaleAnswer | ScaleRefusal:
        pool, replicas = wish.pool, wish.replicas
        await self.look_first()
        if (other := self._sight.others.get(pool)) is not None and wish.by == REST:
            await self._port.set_target(pool, replicas)  # gateways, the autoscaler: nothing to check or to hold
            return ScaleAnswer(pool, other.target, replicas, MOST_REPLICAS, 0.0, f"{pool}: {replicas}")
        refusal = refusal_of(pool, wish.hold_s, self._sizes, self._sight)
        if refusal is not None:
            return refusal
        if not 0 <= replicas <= MOST_REPLICAS:
            return ScaleRefusal("invalid", f"{replicas!r} is no number of replicas: give 0 to {MOST_REPLICAS}")
        async with self._lock:
            await self._look()
            most, before = self._room.most(pool, self._sight), self._sight.deployments[pool].target
            if replicas > max(most, before):
                message = f"{replicas} replicas of {pool} do not fit, {most} would: {self._shortage(pool)}"
                return ScaleRefusal("no_room", message, most)
            held_s = self._default_hold_s if wish.hold_s is None else wish.hold_s
            held = f", held for {duration_text(held_s)}" if held_s else ""
            reason = f"asked for by hand{held}{self._room.wait_of(pool, replicas, self._sight)}"
            reason = await self._set(PoolTarget(pool, before, replicas, ScaleKind.HELD, reason), wish.by, held_s)
            self._holds.set(pool, held_s, wish.by, self._clock())
            return self._answer(pool, before, f"{pool}: {before} -> {replicas}; {reason}")

    async def _hold(self, wish: HoldPool) -> ScaleAnswer | ScaleRefusal:
        pool, by = wish.pool, wish.by
        await self.look_first()
        refusal = refusal_of(pool, wish.hold_s, self._sizes, self._sight)
        if refusal is not None:
            return refusal
        held_s = self._config.autoscaler.manual_hold_s if wish.hold_s is None else wish.hold_s
        async with self._lock:  # not while the policy's target is on its way
            now, target = self._clock(), self._sight.deployments[pool].target
            was_held = self._holds.hold(pool, now) is not None
            self._holds.set(pool, held_s, by, now)
            reason = f"held for {duration_text(held_s)}" if held_s else "released" if was_held else "was not held"
            if held_s or was_held:
                self._write(pool, target, target, ScaleKind.HELD, reason, by)
        return self._answer(pool, target, f"{pool} stays at {target}: {reason}" if held_s else f"{pool}: {reason}")

    async def deploy(self, notice: DeploymentNotice) -> dict[str, int]:
        """A stage of a deployment begins, or the deployment is over. Returns: the targets that it is to set, as far as
        the last look saw them.
        """
        async with self._lock:  # not while a target of the board's own is on its way
            return self._deployments.hear(notice, self._sight, self._clock())

    async def apply(self, targets: Sequence[PoolTarget]) -> None:
        """Carry out what the policy decided: first what makes room, then what takes it.

        Raises: ClusterSilentError.
        Effects: pools that a person holds, or that have another target by now than the policy saw, are left alone.
        """
        async with self._lock:
            if self._deployments.quiet(self._clock()):
                return
            for wanted in in_order(targets):
                if self._holds.hold(wanted.pool, self._clock()):
                    continue
                if (to := granted(wanted, self._sight, self._room)) is not None:
                    await self._set(to, AUTOSCALER)

    def state(self) -> dict[str, Any]:
        """Answers `ReadPools` from the last look."""
        now, config = self._clock(), self._config
        traffic = self._gateways.traffic(now)
        holds = self._holds.rows(now)
        room = {pool: self._room.most(pool, self._sight) for pool in self._sight.deployments}
        lost = self._events.lost()
        waits = {pool: self._room.waited_s(pool, now) for pool in room}
        full = [pool for pool, seen in self._sight.deployments.items() if room[pool] <= seen.target]
        shortages = {pool: self._shortage(pool) for pool in full}
        hits = self._cache.hit_tokens / self._cache.looked_up_tokens if self._cache.looked_up_tokens else None
        return {
            "now": now,
            "seen_s": now - self._sight.at,
            "model": config.model.name or config.model.path.name,
            "mode": config.serving.mode,
            "slo": self._gateways.last_minute(config.slo, now),
            **hardware(config, self._sight, now),
            "gateway": {
                "running": self._gateways.running(now),
                "queued": traffic.queued,
                "queued_tokens": traffic.queued_tokens,
            },
            "autoscaler": self._autoscaler_row(now),
            "pools": pool_rows(config, self._sight, room, shortages, holds, hits, lost, self._busy, waits),
            "starts": self._tally.starts.medians(),
            "decisions": self.decisions(ReadDecisions(limit=SHOWN)),
            "events": self.events(ReadEvents(limit=SHOWN)),
        }

    def _experts(self) -> dict[str, Any]:
        return experts_of(self._config, self._sight, self._events.lost(), self._clock())

    def decisions(self, question: ReadDecisions) -> list[dict[str, Any]]:
        """Answers `ReadDecisions`."""
        newest, now = self._ledger.newest(question.pool, question.after, question.limit), self._clock()
        return [self._room.row(entry, now) for entry in newest]

    def events(self, question: ReadEvents) -> list[dict[str, Any]]:
        """Answers `ReadEvents`."""
        return [event.row() for event in self._events.newest(question.pool, question.after, question.limit)]

    @property
    def _default_hold_s(self) -> float:
        """A target set by hand stands against the policy; without one there is nothing to stand against."""
        return self._config.autoscaler.manual_hold_s if self._config.autoscaler.policy != "none" else 0.0

    async def _look(self) -> None:
        before = self._sight
        self._sight = await self._port.look(before)
        self._events.observe(before, self._sight)
        self._abilities.observe(self._sight)
        self._cache.observe(self._sight)
        self._busy.observe(self._sight)
        for start in self._tally.observe(before, self._sight):
            self._events.started(start.pool, start.replica, start.text, self._sight.at)
        now = self._clock()
        self._gateways.mark(now)
        if self._history.due(self._sight.at):
            last_minute = self._gateways.last_minute(self._config.slo, now)
            self._history.add(self._sight, self._gateways.traffic(now), self._cache.hit_tokens, last_minute)
        for pool in self._sizes.keys() & self._sight.deployments.keys():
            await self._notice(pool)
        self._deployments.looked()
        if not self._deployments.quiet(now):
            await self._move(now)

    async def _move(self, now: float) -> None:
        """Targets of the board's own: what fits, and spread over hosts."""
        for pool in self._sizes.keys() & self._sight.deployments.keys():
            held = self._holds.hold(pool, now) is not None
            for to in (self._room.look(pool, self._sight, now), self._spread.look(pool, self._sight, now, held=held)):
                if to is not None:
                    await self._set(to, AUTOSCALER)
        if (gateways := self._spread.look_gateways(self._sight, now)) is not None:
            to, leaving = gateways
            await self._port.set_target(to.pool, to.target, leaving)
            self._write(to.pool, to.before, to.target, to.kind, to.reason, AUTOSCALER)

    async def _notice(self, pool: str) -> None:
        """A target that nobody set here."""
        target, meant = self._sight.deployments[pool].target, self._holds.targets.get(pool)
        if meant is None or target == meant:
            self._holds.aim(pool, target)
            return
        if self._deployments.explains(pool, target):
            self._holds.aim(pool, target)
            self._write(pool, meant, target, ScaleKind.DEPLOYED, "set by a deployment", DEPLOYMENT)
            return
        late, by, held_s = self._unanswered.pop(pool, (None, REST, 0.0))
        if late is not None and late.target == target:
            if by != AUTOSCALER:
                self._holds.set(pool, held_s, by, self._clock())
            self._holds.aim(pool, target)
            self._write(pool, meant, target, late.kind, late.reason, by)
            return
        self._holds.set(pool, self._default_hold_s, REST, self._clock())
        room = max(self._room.most(pool, self._sight), meant)
        held = f", held for {duration_text(self._default_hold_s)}" if self._default_hold_s else ""
        self._write(pool, meant, target, ScaleKind.HELD, f"set past the board{held}", REST)
        self._holds.aim(pool, target)
        if target > room:
            reason = f"{target} replicas do not fit, {room} do"
            await self._set(PoolTarget(pool, target, room, ScaleKind.FIT, f"{reason}: {self._shortage(pool)}"), REST)

    async def _set(self, wanted: PoolTarget, by: str, held_s: float = 0.0) -> str:
        """Serve's scale API, the ledger, and what is known from now on. Returns: the reason, as it was written down."""
        ordered = order(wanted, self._sight, self._room)
        to, pool = ordered.to, wanted.pool
        if to.changed:
            self._unanswered[pool] = to, by, held_s
            await self._port.set_target(pool, to.target, ordered.leaving)
        self._unanswered.pop(pool, None)
        self._deployments.overruled(pool)
        self._holds.aim(pool, to.target)
        self._sight = with_target(self._sight, pool, to.target)
        self._write(pool, to.before, to.target, to.kind, to.reason, by)
        return to.reason

    def _write(self, pool: str, before: int, target: int, kind: ScaleKind, reason: str, by: str) -> None:
        entry = self._ledger.add(self._clock(), pool, before, target, kind, reason, by)
        self._room.note(entry)
        self._spread.note(entry)
        logger.info("%s: %d -> %d (%s, %s): %s", pool, before, target, kind.value, by, reason)

    def _shortage(self, pool: str) -> str:
        return self._room.shortage(pool, self._sight)

    def _answer(self, pool: str, before: int, message: str) -> ScaleAnswer:
        left, most = self._holds.left_s(pool, self._clock()), self._room.most(pool, self._sight)
        return ScaleAnswer(pool, before, self._sight.deployments[pool].target, most, left, message)

    def _autoscaler_row(self, now: float) -> dict[str, Any]:
        return autoscaler_row(self._config, self._looked_for_policy, now)
