"""The scaling board as one small named actor, and its client.

It survives the autoscaler and every gateway. If it dies, Ray restarts it within about a second, on another host if
necessary; ledger and holds are in Ray's control store.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

import ray

from serving.cluster.gcs_store import ActorLookup, GcsStore, KeptValues
from serving.cluster.named_actor import renew_actor
from serving.config.serve import ServeConfig
from serving.deadline import within
from serving.kvpool.live.pool_control import Complaint
from serving.scaling.core.decision import PoolTarget
from serving.scaling.core.signals import sizes_of
from serving.scaling.live.board import ScalingBoard
from serving.scaling.live.cluster_port import ClusterSilentError
from serving.scaling.live.observe import RayCluster
from serving.scaling.live.scale_path import BOARD, CALL_DEADLINE_S, NAMESPACE
from serving.values.scaling_operations import Answer, PoolOperation, ScaleRefusal
from serving.values.signals import ScalingSignals
from serving.values.system_tally import DeploymentNotice
from serving.values.traffic import BoardReply, GatewayReport

logger = logging.getLogger(__name__)

FIRST_POLL_S = 12.0
"""A new board needs seconds for its first poll on a busy node."""
PAUSE_S = 0.2
SILENT = "Serve's controller does not answer; try again"


@ray.remote(num_cpus=0, max_restarts=-1)
class ScalingBoardActor:
    """The named actor around a `ScalingBoard`.

    Args:
        session: of the system, under which ledger and holds are stored.
    """

    def __init__(self, config: ServeConfig, app: str, session: str) -> None:
        self._cluster = RayCluster(app, sizes_of(config), with_cache=bool(config.kvcache.replicas))
        self._board = ScalingBoard(config, self._cluster, KeptValues(GcsStore(), f"board/{session}/"))
        self._prepared = False
        self._complaint = Complaint("the cluster does not answer; the scaling board waits")
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start polling. Called by the actor's creator; after a restart the first request starts it."""
        self._task = self._task or asyncio.create_task(self._poll_forever())

    async def report(self, report: GatewayReport) -> BoardReply:
        """Add a gateway's report, see `ScalingBoard.report`."""
        await self.start()
        return self._board.report(report)

    async def next_signals(self, period_s: float) -> ScalingSignals:
        """Signals for a scaler after a period, see `ScalingBoard.next_signals`."""
        await self.start()
        return await self._board.next_signals(period_s)

    async def deploy(self, notice: DeploymentNotice) -> dict[str, int]:
        """Handle a deployment's notice on a current snapshot, see `ScalingBoard.deploy`."""
        await self.start()
        if not notice.over and not await polled(self._board.poll, FIRST_POLL_S):
            logger.warning("%s", SILENT)
        return await self._board.deploy(notice)

    async def apply(self, targets: Sequence[PoolTarget]) -> None:
        """Carry out the policy's targets, see `ScalingBoard.apply`."""
        await self._board.apply(targets)

    async def answer(self, operation: PoolOperation[Answer]) -> Answer | ScaleRefusal:
        """Carry out an operation, see `ScalingBoard.answer`; a silent cluster results in a refusal."""
        await self.start()
        try:
            return await self._board.answer(operation)
        except ClusterSilentError as error:
            logger.warning("%s", error)
            return ScaleRefusal("unavailable", SILENT)

    async def _poll_forever(self) -> None:
        while True:
            try:
                await self._board.poll_when_due()
                self._complaint.over()
                if not self._prepared and not self._board.fleet.moving:  # until then the start needs the cores
                    self._prepared = True
                    await self._cluster.prepare()
            except ClusterSilentError as error:
                self._complaint.make(error)
            except Exception:  # a bug in one poll must not stop polling
                logger.exception("a look failed")


async def polled(poll: Callable[[], Awaitable[None]], patience_s: float, pause_s: float = PAUSE_S) -> bool:
    """Poll until the cluster responds. Returns: whether it did within `patience_s`."""
    end = time.monotonic() + patience_s
    while True:
        try:
            await poll()
        except ClusterSilentError:
            if time.monotonic() > end:
                return False
            await asyncio.sleep(pause_s)
        else:
            return True


def start_board(config: ServeConfig, app: str, session: str) -> None:
    """Start the board as a detached actor, concurrently with the rest of the system, without waiting for it.

    The board of an earlier deployment is stopped.
    """
    renew_actor(ScalingBoardActor, BOARD, config, app, session).start.remote()


def note_deployment(notice: DeploymentNotice, deadline_s: float) -> dict[str, int] | None:
    """Notify the board of a deployment. Blocks.

    Args:
        deadline_s: for the response; 0 = do not wait.
    Returns: see `ScalingBoard.deploy`; None without a response.
    """
    try:
        board: Any = ray.get_actor(BOARD, NAMESPACE)
        answer = board.deploy.remote(notice)
        targets: dict[str, int] | None = ray.get(answer, timeout=deadline_s) if deadline_s else None
    except (ray.exceptions.RayError, ValueError) as error:
        logger.warning("the scaling board does not answer (%s)", type(error).__name__)
        return None
    return targets


class BoardClient:
    """Client of the board for a process that calls it repeatedly."""

    def __init__(self) -> None:
        self._lookup = ActorLookup(partial(ray.get_actor, BOARD, NAMESPACE))
        self._actor: Any = None

    async def report(self, report: GatewayReport) -> BoardReply:
        """Send a gateway's report, see `ScalingBoard.report`.

        Raises: ray.exceptions.RayError, TimeoutError, ValueError if the board does not respond.
        """
        news: BoardReply = await self._ask(CALL_DEADLINE_S, "report", report)
        return news

    async def next_signals(self, period_s: float) -> ScalingSignals:
        """Request signals for a scaler, see `ScalingBoard.next_signals`.

        Raises: as `report`.
        """
        signals: ScalingSignals = await self._ask(period_s + 2 * CALL_DEADLINE_S, "next_signals", period_s)
        return signals

    async def apply(self, targets: Sequence[PoolTarget]) -> None:
        """Send the policy's targets, see `ScalingBoard.apply`.

        Raises: as `report`.
        """
        await self._ask(2 * CALL_DEADLINE_S, "apply", tuple(targets))

    async def _ask(self, deadline_s: float, method: str, *arguments: Any) -> Any:
        async def answer() -> Any:
            self._actor = self._actor or await self._lookup.answer(CALL_DEADLINE_S)
            return await getattr(self._actor, method).remote(*arguments)

        try:
            return await within(answer(), deadline_s)
        except (ray.exceptions.RayError, TimeoutError, ValueError):
            self._actor = None
            raise
