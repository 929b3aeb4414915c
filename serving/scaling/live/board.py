"""The live driver of the fleet: polls the cluster, passes events to the rules, and carries out their effects.

It does not import Ray: a port reaches the cluster. The rules are in `core/fleet.py`, read-only views in
`core/board_views.py`.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from typing import Any

from serving.config.serve import ServeConfig
from serving.deadline import within
from serving.errors import UnavailableError
from serving.scaling.core.board_views import QUESTIONS, BoardViews, Observations, Question
from serving.scaling.core.decision import LedgerEntry, PoolTarget
from serving.scaling.core.fleet import ScalingFleet
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
from serving.scaling.core.group_orders import GROUP_OPERATIONS, GroupOperation, group_answer, rank_order
from serving.scaling.core.group_parts import group_parts
from serving.scaling.core.ledger import KeyedValues
from serving.scaling.core.signals import sizes_of
from serving.scaling.live.cluster_port import ClusterPort, ClusterSilentError, steady_s
from serving.values.scaling_operations import (
    Answer,
    GroupAnswer,
    HoldPool,
    PoolOperation,
    ReadExperts,
    ReadPools,
    ReleasePool,
    ResizeRankGroup,
    ScaleAnswer,
    ScalePool,
    ScaleRefusal,
)
from serving.values.signals import ScalingSignals
from serving.values.system_tally import DeploymentNotice
from serving.values.traffic import BoardReply, GatewayReport

logger = logging.getLogger(__name__)


class ScalingBoard:
    """Driver of one fleet, for one event loop.

    Args:
        kept: where ledger, holds and events are stored.
        clock: seconds since 1970, monotonic.
    """

    def __init__(
        self, config: ServeConfig, port: ClusterPort, kept: KeyedValues, clock: Callable[[], float] = steady_s
    ) -> None:
        self._port = port
        self._clock = clock
        self._seen = Observations(config, clock(), kept)
        self.fleet = ScalingFleet(
            config.autoscaler,
            sizes_of(config),
            kept,
            gateways=config.gateway.replicas > 1,
            parts=group_parts(config),
            node_came=self._seen.tally.starts.node_came,
        )
        """The fleet, for reading when the next poll is due and whether replicas start or drain."""
        self._views = BoardViews(config, self.fleet, self._seen)
        self._lock = asyncio.Lock()
        self._asked = asyncio.Event()
        self._stirred = asyncio.Event()
        """Set when the next poll may be due sooner."""
        for warning in (*self.fleet.ledger.warnings, *self.fleet.holds.warnings, *self._seen.events.warnings):
            logger.warning("%s", warning)

    async def poll(self, older_than_s: float = 0.0) -> None:
        """Poll the cluster, unless the last snapshot is younger than `older_than_s`.

        Raises: ClusterSilentError.
        """
        async with self._lock:
            if self._clock() - self.fleet.snapshot.at >= older_than_s:
                await self._poll()

    async def poll_when_due(self) -> None:
        """Wait until the next poll is due, then poll, unless that was done meanwhile. Raises: ClusterSilentError."""
        began = self._clock()
        while True:
            now = self._clock()
            period_s = self._seen.poll_period_s(self.fleet, now)
            if now - began >= period_s:
                break
            self._stirred.clear()
            with contextlib.suppress(TimeoutError):
                await within(self._stirred.wait(), began + period_s - now)
        await self.poll(older_than_s=period_s / 2)

    async def poll_first(self) -> None:
        """Poll the cluster unless there is a snapshot already, for requests right after the start of the board.

        Raises: ClusterSilentError.
        """
        if not self.fleet.snapshot.at:
            await self.poll()

    def report(self, report: GatewayReport) -> BoardReply:
        """Add a gateway's report. Returns: state of the pools and the other gateways, for its status page."""
        now = self._clock()
        if self._seen.report(report, now):
            self._asked.set()
        self._stirred.set()
        return self._views.news(report.gateway, now)

    async def next_signals(self, period_s: float) -> ScalingSignals:
        """Signals for a scaler, after `period_s` in real time, or once requests wait for a role without instances.

        Raises: ClusterSilentError.
        """
        self._seen.policy_polled = self._clock()
        with contextlib.suppress(TimeoutError):
            await within(self._asked.wait(), period_s)
        self._asked.clear()
        await self.poll()
        return self._seen.signals(self.fleet, self._clock())

    async def answer(self, operation: PoolOperation[Answer]) -> Answer | ScaleRefusal:
        """Carry out an operation, or answer a question.

        Raises: ClusterSilentError: the cluster did not respond; a requested target may have been set nevertheless.
        """
        result: Any
        if isinstance(operation, QUESTIONS):
            if isinstance(operation, ReadPools | ReadExperts):
                with contextlib.suppress(ClusterSilentError):
                    await self.poll_first()
            result = self.read(operation)
        elif isinstance(operation, GROUP_OPERATIONS):
            result = await self._order(operation)
        elif isinstance(operation, ScalePool | HoldPool | ReleasePool):
            result = await self._operate(operation)
        else:
            raise TypeError(f"{operation!r} is no operation on the pools")
        answer: Answer | ScaleRefusal = result
        return answer

    def read(self, question: Question) -> Any:
        """Response to a question from the last snapshot, ready for JSON."""
        self._stirred.set()
        return self._views.read(question, self._clock())

    async def deploy(self, notice: DeploymentNotice) -> dict[str, int]:
        """A stage of a deployment starts, or the deployment has finished. Returns: the targets that the stage must set,
        with the last snapshot's targets of all other Serve deployments.
        """
        self._seen.events.deployed(notice, self._clock())
        async with self._lock:  # not while a target of the board's own is on its way
            effects = await self._tell(notice)
        return next(dict(effect.targets) for effect in effects if isinstance(effect, StageTargets))

    async def apply(self, targets: Sequence[PoolTarget]) -> None:
        """Carry out the policy's targets.

        Raises: ClusterSilentError.
        """
        async with self._lock:
            await self._tell(Decided(tuple(targets)))

    async def _operate(self, operation: ScalePool | HoldPool | ReleasePool) -> ScaleAnswer | ScaleRefusal:
        await self.poll_first()
        async with self._lock:
            if isinstance(operation, ScalePool):
                await self._poll()  # capacity is checked on a current snapshot
            effects = await self._tell(operation)
        return next(effect for effect in effects if isinstance(effect, ScaleAnswer | ScaleRefusal))

    async def _order(self, operation: GroupOperation) -> GroupAnswer | ScaleRefusal:
        wanted = rank_order(operation, self.fleet.snapshot)
        if isinstance(wanted, ScaleRefusal):
            return wanted
        try:
            answer = await self._port.order(wanted.actor, wanted.order)
        except UnavailableError as error:
            return ScaleRefusal("unavailable", str(error))
        return group_answer(operation.group, answer)

    async def _poll(self) -> None:
        before = self.fleet.snapshot
        snapshot = await self._port.poll(before)
        self._seen.poll(before, snapshot, self._clock())
        await self._tell(FleetPolled(snapshot))

    async def _tell(self, event: FleetEvent) -> list[FleetEffect]:
        """Pass an event to the fleet and carry out its effects. Returns: all effects."""
        self._stirred.set()
        done = effects = self.fleet.on(event, self._clock())
        _log(effects)
        while effects and isinstance(effects[-1], SetTarget):
            await self._set_target(effects[-1])
            effects = self.fleet.on(TargetAccepted(), self._clock())
            _log(effects)
            done = [*done, *effects]
        for effect in done:
            if isinstance(effect, ResizeRankGroup) and isinstance(answer := await self._order(effect), ScaleRefusal):
                _log(self.fleet.on(GroupRefused(effect, answer), self._clock()))
        return done

    async def _set_target(self, order: SetTarget) -> None:
        try:
            await self._port.set_target(order.pool, order.target, order.leaving)
        except BaseException:  # also if cancelled: the outcome is unknown
            self.fleet.on(TargetUnanswered(), self._clock())
            raise


def _log(effects: Sequence[FleetEffect]) -> None:
    for one in effects:
        if isinstance(one, LedgerEntry):
            change = f"{one.pool}: {one.before} -> {one.target}"
            logger.info("%s (%s, %s): %s", change, one.kind.value, one.by, one.reason)
