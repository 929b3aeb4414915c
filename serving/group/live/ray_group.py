"""Access of a shell to its ranks: Ray's control store to find, make and kill them, and direct actor calls.

Calls to the control store run on a thread, since it may not respond; every wait has a deadline.
"""

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import ray
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from serving.cluster.gcs_store import ActorLookup
from serving.cluster.membership import NAMESPACE
from serving.cluster.serve_replicas import replicas_among
from serving.config.serve import ServeConfig
from serving.deadline import within
from serving.group.core.rank_life import RankName
from serving.group.live.group_places import (
    NoPlaceYetError,
    kind_of,
    placed_groups,
    placement,
    rank_kinds,
    remove_placement,
)
from serving.group.live.group_port import (
    AnswerOperator,
    Begin,
    CloseLog,
    EndRank,
    Follow,
    FoundRanks,
    Leave,
    MoveExperts,
    QuitGroup,
    RankCall,
    RankDeadError,
    RankSilentError,
    ShowFacts,
)
from serving.group.live.rank_actor import RankActor, RankOrder
from serving.group.live.shell import CALL_DEADLINE_S
from serving.values.expert_map import RankEvent
from serving.values.group import RankLease, RankReport

Answer = TypeVar("Answer")


class RayGroup:
    """The `GroupPort` of a running system.

    Args:
        died: called on the event loop for each rank whose process has ended.
    """

    def __init__(
        self,
        session: str,
        config: ServeConfig,
        pool: str,
        secret: str,
        died: Callable[[RankName], None],
    ) -> None:
        self._session, self._config, self._pool = session, config, pool
        self._secret = secret
        self._kinds = rank_kinds(config.pools[pool], config.experts)
        self._across_nodes = config.experts.across_nodes
        self._died = died
        self._actors: dict[RankName, Any] = {}
        self._asked: dict[RankName, asyncio.Task[RankReport]] = {}
        """Calls of `hold` without a response: a rank that is still starting gets no second call."""
        self._watches: dict[RankName, asyncio.Task[None]] = {}
        self._node = ray.get_runtime_context().get_node_id()
        self._processes: dict[RankName, int] = {}
        """Pidfds of ranks of this node."""

    async def found(self) -> FoundRanks:
        """Implements `GroupPort.found`."""
        listed: list[dict[str, str]] = await _of_ray(partial(ray.util.list_named_actors, all_namespaces=True))
        names = [RankName.parse(one["name"]) for one in listed if one["namespace"] == NAMESPACE]
        shells = frozenset(one.unique_id for one in replicas_among(listed) if one.deployment_id.name == self._pool)
        spread = self._across_nodes
        places = await _of_ray(partial(placed_groups, self._session, self._pool, self._kinds, across_nodes=spread))
        ranks = tuple(name for name in names if name is not None and name.pool == self._pool)
        return FoundRanks(ranks, places.groups, shells, places.added, places.room)

    async def make(self, name: RankName, founder: RankLease, *, gently: bool) -> None:
        """Implements `GroupPort.make`."""
        try:
            self._actors[name] = await _of_ray(partial(self._make, name, founder, gently))
        except NoPlaceYetError:
            raise RankSilentError(f"{name.group} has no placement group yet") from None
        self._watch(name)

    async def hold(self, name: RankName, lease: RankLease, limit_s: float) -> RankReport:
        """Implements `GroupPort.hold`. Effects: watches a process of this node by its pidfd."""
        asked = self._asked.get(name)
        if asked is None:
            asked = self._asked[name] = asyncio.create_task(self._hold(name, lease))
        await asyncio.wait({asked}, timeout=limit_s)
        if not asked.done():
            raise RankSilentError(f"{name.actor} has not answered for {limit_s:g} s")
        del self._asked[name]
        report = asked.result()
        self._watch_process(name, report)
        return report

    async def tell(self, name: RankName, call: RankCall, limit_s: float) -> tuple[RankEvent, ...]:
        """Implements `GroupPort.tell`."""
        actor = await self._actor(name)
        match call:
            case Follow(order):
                told = actor.follow.remote(order)
            case Begin(order):
                told = actor.begin.remote(order.epoch, order.members)
            case Leave(drain_s):
                told = actor.leave.remote(drain_s)
            case QuitGroup():
                told = actor.quit.remote()
            case CloseLog():
                told = actor.close_log.remote()
            case EndRank():
                told = actor.end.remote()
            case MoveExperts(lease, orders):
                told = actor.move.remote(lease, orders)
            case ShowFacts(facts):
                told = actor.show.remote(facts)
            case AnswerOperator(order, answer):
                told = actor.answer_operator.remote(order, answer)
        events: tuple[RankEvent, ...] | None = await _answer(name, told, limit_s)
        return events or ()

    async def kill(self, name: RankName, report: RankReport | None) -> None:
        """Implements `GroupPort.kill`. SIGKILL also ends a frozen process, which would not handle Ray's command."""
        try:
            actor = await self._actor(name)
        except RankDeadError:
            return self._forget(name)
        if report is not None and report.node == self._node:
            with contextlib.suppress(ProcessLookupError):
                os.kill(report.pid, signal.SIGKILL)
        await _of_ray(partial(ray.kill, actor))
        watch = self._watches.get(name)
        if watch is not None:
            await asyncio.wait({watch}, timeout=CALL_DEADLINE_S)
            if not watch.done():
                raise RankSilentError(f"{name.actor} was killed, but does not exit")
        self._forget(name)
        return None

    async def remove(self, group: str, rank: int | None = None) -> None:
        """Implements `GroupPort.remove`."""
        await _of_ray(partial(remove_placement, self._session, group, rank))

    def _make(self, name: RankName, founder: RankLease, gently: bool) -> Any:
        spread = self._across_nodes
        place, bundle = placement(name.session, name.group, name.rank, self._kinds, across_nodes=spread)
        actor_class: Any = RankActor
        return actor_class.options(
            name=name.actor,
            namespace=NAMESPACE,
            lifetime="detached",
            resources=kind_of(self._kinds, name.rank).resources,
            scheduling_strategy=PlacementGroupSchedulingStrategy(place, placement_group_bundle_index=bundle),
        ).remote(RankOrder(self._config, name, founder, self._secret, gently))

    async def _actor(self, name: RankName) -> Any:
        """Raises: RankDeadError if Ray does not list it."""
        actor = self._actors.get(name)
        if actor is None:
            try:
                actor = await _of_ray(partial(ray.get_actor, name.actor, NAMESPACE))
            except ValueError:
                raise RankDeadError(name.actor) from None
            self._actors[name] = actor
            self._watch(name)
        return actor

    async def _hold(self, name: RankName, lease: RankLease) -> RankReport:
        actor = await self._actor(name)
        report: RankReport = await _answer(name, actor.hold.remote(lease), None)
        return report

    def _watch_process(self, name: RankName, report: RankReport) -> None:
        if name in self._processes or report.node != self._node:
            return
        try:
            self._processes[name] = fd = os.pidfd_open(report.pid)
        except OSError:  # it has ended: Ray reports that, too
            return
        asyncio.get_running_loop().add_reader(fd, self._ended, name)

    def _ended(self, name: RankName) -> None:
        self._unwatch(name)
        self._died(name)

    def _unwatch(self, name: RankName) -> None:
        fd = self._processes.pop(name, None)
        if fd is not None:
            asyncio.get_running_loop().remove_reader(fd)
            os.close(fd)

    def _watch(self, name: RankName) -> None:
        self._watches[name] = asyncio.create_task(self._until_death(name, self._actors[name]))

    async def _until_death(self, name: RankName, actor: Any) -> None:
        """Report the end of a rank's process. After any other failure of the call, wait and call again."""
        while True:
            try:
                await _answer(name, actor.until_death.remote(), None)
            except RankDeadError:
                return self._died(name)
            except RankSilentError:
                await asyncio.sleep(1.0)

    def _forget(self, name: RankName) -> None:
        self._unwatch(name)
        self._actors.pop(name, None)
        watch = self._watches.pop(name, None)
        if watch is not None:
            watch.cancel()
        asked = self._asked.pop(name, None)
        if asked is not None:
            asked.cancel()


async def _answer(name: RankName, ref: Any, limit_s: float | None) -> Any:
    """Raises: RankDeadError, RankSilentError."""
    try:
        return await within(ref, limit_s)
    except TimeoutError as error:
        raise RankSilentError(f"{name.actor} has not answered for {limit_s:g} s") from error
    except ray.exceptions.ActorUnavailableError as error:
        raise RankSilentError(f"{name.actor} cannot be reached") from error
    except ray.exceptions.RayActorError as error:
        raise RankDeadError(name.actor) from error
    except ray.exceptions.RayError as error:
        raise RankSilentError(f"{name.actor}: {error}") from error


async def _of_ray(find: Callable[[], Answer]) -> Answer:
    """Call Ray's control store. Raises: RankSilentError; ValueError as `find`."""
    try:
        found: Answer = await ActorLookup(find).answer(CALL_DEADLINE_S)
    except (ray.exceptions.RayError, TimeoutError) as error:
        raise RankSilentError(f"Ray does not answer ({type(error).__name__})") from error
    return found
