"""The pool's controller as one small named actor: memory servers announce themselves, other processes read the view.

    kvcache replica ── PoolAnnouncer ──►  actor  ◄── PoolViewFollower ── engine replicas, gateways
                    record, every 1-2 s          view, as soon as it changes

Without the actor the pool keeps working with the last view. Servers send the namespaces that they have to the next
actor, which publishes no view before every live server has had time to announce itself.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import ray

from hardware.units import MIB
from serving.cluster.gcs_store import ActorLookup
from serving.cluster.membership import NAMESPACE
from serving.cluster.named_actor import renew_actor
from serving.cluster.nodes import ON_HEAD_NODE, LostNodeWatch
from serving.config.serve import ServeConfig
from serving.deadline import within
from serving.errors import UnavailableError
from serving.ids import NodeId
from serving.kvpool.core.controller import ControllerAnswer, ControlSettings
from serving.kvpool.core.roster import EXPIRY_S
from serving.kvpool.live.controller_host import ControllerHost
from serving.values.pool_view import EMPTY_VIEW, NamespaceClaims, NamespaceRecord, PoolView, ServerRecord

logger = logging.getLogger(__name__)

NAME = "cloudmatrix-pool-control"
ANNOUNCE_PERIOD_S = 1.0
ALONE_PERIOD_S = 2.0
"""Of a pool's only server, which has no peers that must learn its state."""
VIEW_PERIOD_S = 0.5
"""Most delay with which a change reaches a follower, unless the controller fails."""
VIEW_PATIENCE_S = 5.0
"""Time after which a follower gets the view although it has not changed."""
LEAST_VIEW_PERIOD_S = 0.05
LEAST_WAIT_S = 0.01
CALL_DEADLINE_S = 3.0
TROUBLE = 2
POOL_WAIT_S = 10.0
"""A memory server needs no torch and is up long before an instance; only one that does not come costs this."""

assert EXPIRY_S >= CALL_DEADLINE_S + ALONE_PERIOD_S, "one lost call must not cost a server its place"


@ray.remote(num_cpus=0, max_restarts=-1)
class PoolControlActor:
    """The named actor around a `ControllerHost`. Its methods share one event loop."""

    def __init__(self, settings: ControlSettings) -> None:
        again = bool(ray.get_runtime_context().was_current_actor_reconstructed)
        self._host = ControllerHost(replace(settings, founding=settings.founding and not again))
        self._version = ""
        self._changed = asyncio.Event()
        self._watch: LostNodeWatch | None = None

    async def announce(self, record: ServerRecord, namespaces: tuple[NamespaceRecord, ...]) -> ControllerAnswer:
        """Take a server's announcement."""
        if self._watch is None:
            loop = asyncio.get_running_loop()

            def lose(nodes: frozenset[NodeId]) -> None:
                self._host.lose(nodes)
                loop.call_soon_threadsafe(self._tell)

            self._watch = LostNodeWatch(lose)
            self._watch.start()
        answer = self._host.announce(record, namespaces)
        self._tell()
        return answer

    async def withdraw(self, name: str, incarnation: str) -> None:
        """Remove a server that leaves."""
        self._host.withdraw(name, incarnation)
        self._tell()

    async def view(self) -> PoolView | None:
        """The current view; None while the controller's knowledge is incomplete."""
        return self._host.view()

    async def next_view(self, known: str, patience_s: float) -> PoolView | None:
        """The view as soon as it differs from version `known`, at the latest after `patience_s`; None as for `view`."""
        end = time.monotonic() + patience_s
        while True:
            view, lasts_s = self._host.view(), self._host.lasts_s()
            left_s = end - time.monotonic()
            if left_s <= 0 or (view is not None and view.version != known):
                return view
            with contextlib.suppress(TimeoutError):
                await within(self._changed.wait(), max(LEAST_WAIT_S, min(left_s, lasts_s)))

    async def set_namespace(self, record: NamespaceRecord) -> None:
        """Add a namespace, or change its quota and weight."""
        self._host.set_namespace(record)
        self._tell()

    async def delete_namespace(self, name: str) -> bool:
        """Remove a namespace and its quota; its entries stay. Returns: whether it existed."""
        was_there = self._host.delete_namespace(name)
        self._tell()
        return was_there

    def _tell(self) -> None:
        """Wake all waiting followers if the view has changed."""
        view = self._host.view()
        if view is not None and view.version != self._version:
            self._version = view.version
            self._changed.set()
            self._changed = asyncio.Event()


def control_settings(config: ServeConfig, session: str) -> ControlSettings:
    """Settings of the controller for this start of the system."""
    return ControlSettings(
        session=session,
        directory=config.kvcache.directory,
        ramp_s=config.kvcache.ramp_s,
        namespaces=tuple(
            NamespaceRecord(
                n.name,
                n.quota_mib * MIB,
                n.weight,
                claims=NamespaceClaims(n.retain_mib * MIB, n.pin_mib * MIB, n.max_ttl_s),
            )
            for n in config.namespaces
        ),
    )


def start_pool_control(settings: ControlSettings) -> Any:
    """Make the cluster's controller actor with these settings; that of an earlier deployment ends. Blocks.

    Raises: SilentError if an earlier one does not end.
    """
    try:
        ray.get_actor(NAME, NAMESPACE)
    except ValueError:
        founding = True
    else:
        founding = False  # servers are there, whose namespaces it must hear of first
    return renew_actor(PoolControlActor, NAME, replace(settings, founding=founding))


def pool_control(settings: ControlSettings) -> Any:
    """The cluster's controller actor; a memory server creates it again if it is lost."""
    actor_class: Any = PoolControlActor
    return actor_class.options(
        name=NAME, namespace=NAMESPACE, get_if_exists=True, lifetime="detached", resources=ON_HEAD_NODE
    ).remote(settings)


class PoolAnnouncer:
    """Announces one memory server until `leave`; survives the death of the actor.

    Args:
        describe: returns the server's record; called in a thread before each announcement.
    """

    def __init__(self, settings: ControlSettings, describe: Callable[[], ServerRecord]) -> None:
        self._lookup = ActorLookup(partial(pool_control, settings))
        self._describe = describe
        self.view = EMPTY_VIEW
        """The latest view; that of an empty pool before the first."""
        self._superseded = False
        self._actor: Any = None
        self._task: asyncio.Task[None] | None = None
        self._fresh = asyncio.Event()
        self._complaint = Complaint("the pool's controller does not respond; the pool continues unchanged")

    def start(self) -> None:
        """Announce from now on, every second or two."""
        self._task = asyncio.create_task(self._forever())

    def check(self) -> None:
        """Raises: RuntimeError if announcing has ended unexpectedly, or another server has this one's name."""
        if self._superseded:
            raise RuntimeError("another memory server has this one's name; this one must not serve any longer")
        if self._task is not None and self._task.done():
            raise RuntimeError("the memory server has stopped registering") from self._error()

    async def next_view(self) -> PoolView:
        """The view of the next response."""
        self._fresh.clear()
        await self._fresh.wait()
        return self.view

    async def announce(self) -> None:
        """Announce once, now.

        Raises: ray.exceptions.RayError, TimeoutError, ValueError if the actor does not answer.
        """
        record = await asyncio.to_thread(self._describe)
        self._actor = self._actor or await self._lookup.answer(CALL_DEADLINE_S)
        answer: ControllerAnswer = await within(
            self._actor.announce.remote(record, self.view.namespaces), CALL_DEADLINE_S
        )
        self._superseded = not answer.accepted
        if answer.view is not None:  # None: too young; it must not take away what we have
            self.view = answer.view
            self._fresh.set()

    async def leave(self) -> None:
        """Withdraw and stop. Never raises: without a withdrawal the entry expires by itself."""
        if self._task is not None:
            self._task.cancel()
        try:
            record = await asyncio.to_thread(self._describe)
            if self._actor is not None:
                await within(self._actor.withdraw.remote(record.name, record.incarnation), CALL_DEADLINE_S)
        except (ray.exceptions.RayError, TimeoutError):
            logger.info("could not withdraw from the pool; the entry expires by itself")

    async def _forever(self) -> None:
        while True:
            try:
                await self.announce()
                self._complaint.over()
            except (ray.exceptions.RayError, TimeoutError, ValueError) as error:
                self._complaint.make(error)
                self._actor = None
            alone = self._actor is not None and len(self.view.servers) == 1
            await asyncio.sleep(ALONE_PERIOD_S if alone else ANNOUNCE_PERIOD_S)

    def _error(self) -> BaseException | None:
        task = self._task
        return None if task is None or task.cancelled() else task.exception()


class PoolViewFollower:
    """Keeps the latest view. Any thread may read `view`; the rest belongs to one event loop.

    Args:
        period_s: time between two attempts while the controller does not respond [s].
        patience_s: see `VIEW_PATIENCE_S`.
    """

    def __init__(self, period_s: float = VIEW_PERIOD_S, patience_s: float = VIEW_PATIENCE_S) -> None:
        self._period_s = period_s
        self._patience_s = patience_s
        self._actor: Any = None
        self._lookup = ActorLookup(partial(ray.get_actor, NAME, NAMESPACE))
        self.view = EMPTY_VIEW
        """The latest view; that of an empty pool before the first."""
        self._task: asyncio.Task[None] | None = None
        self._complaint = Complaint("the pool's controller does not answer; keeping the last view")

    def start(self) -> None:
        """Follow from now on."""
        self._task = asyncio.create_task(self._forever())

    async def stop(self) -> None:
        """Stop following; the last view stays."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def wait_for_servers(self, node: NodeId, servers: int) -> None:
        """Wait up to `POOL_WAIT_S` for memory servers that start at the same time: one of them may have the weights.

        Args:
            node: of the caller. servers: number of servers that the pool starts with.
        """
        deadline = time.monotonic() + POOL_WAIT_S
        while time.monotonic() < deadline:
            there = self.view.servers
            # A server that has been up for long shows that the pool is as it is, maybe smaller than it began.
            known = any(one.record.node == node or one.record.uptime_s > POOL_WAIT_S for one in there)
            if known or len(there) >= servers:
                return
            await asyncio.sleep(0.05)
        logger.warning(
            "no memory server after %.0f s; starting without it; it is used once it is available", POOL_WAIT_S
        )

    async def refresh(self, deadline_s: float) -> None:
        """Get the servers' latest facts, which are no change of the view. Without a response they stay as they are."""
        with contextlib.suppress(ray.exceptions.RayError, TimeoutError):
            if self._actor is not None:
                view: PoolView | None = await within(self._actor.view.remote(), deadline_s)
                self.view = self.view if view is None else view

    async def _forever(self) -> None:
        while True:
            try:
                self._actor = self._actor or await self._lookup.answer(CALL_DEADLINE_S)
                question = self._actor.next_view.remote(self.view.version, self._patience_s)
                view: PoolView | None = await within(question, self._patience_s + CALL_DEADLINE_S)
                self.view = self.view if view is None else view
                self._complaint.over()
                pause_s = LEAST_VIEW_PERIOD_S
            except (ray.exceptions.RayError, TimeoutError, ValueError) as error:
                if self._actor is not None:  # before the first memory server there is none: nothing is wrong
                    self._complaint.make(error)
                self._actor = None
                pause_s = self._period_s
            await asyncio.sleep(pause_s)


class NamespaceChanges:
    """Sends changes of namespaces to the pool's controller; implements `NamespaceDirectory`."""

    def __init__(self) -> None:
        self._lookup = ActorLookup(partial(ray.get_actor, NAME, NAMESPACE))

    async def set_namespace(self, record: NamespaceRecord) -> None:
        """Add a namespace, or change its quota and weight.

        Raises: UnavailableError if the controller does not respond.
        """
        await self._ask(lambda actor: actor.set_namespace.remote(record))

    async def drop_namespace(self, name: str) -> None:
        """Remove a namespace; its entries stay. Raises: UnavailableError if the controller does not respond."""
        await self._ask(lambda actor: actor.delete_namespace.remote(name))

    async def _ask(self, call: Callable[[Any], Any]) -> None:
        try:
            await within(call(await self._lookup.answer(CALL_DEADLINE_S)), CALL_DEADLINE_S)
        except (ray.exceptions.RayError, TimeoutError, ValueError) as error:
            raise UnavailableError(
                "the pool's controller did not respond; the change may or may not have been made. Is Ray's head "
                "lost? Restart it, then repeat the command"
            ) from error


class Complaint:
    """Logs one warning per outage, and one line at its end, however many failures there are in between.

    A single failure does not count: a call may be lost, and an actor takes seconds to start on a busy machine.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self._failures = 0

    def make(self, error: BaseException) -> None:
        """Note an error (still)."""
        self._failures += 1
        if self._failures == TROUBLE:
            logger.warning("%s (%s)", self._text, type(error).__name__)

    def over(self) -> None:
        """Note that all is well (again)."""
        if self._failures >= TROUBLE:
            logger.info("over: %s", self._text)
        self._failures = 0
