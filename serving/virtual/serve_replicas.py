"""Model of Ray Serve's controller in virtual time: replicas of the engine pools that wait, start, serve and drain.

    target = serving + starting + replacing + waiting for NPUs          (if no replica must be removed)
             up        │          │           └ starts as soon as others have ended
                       │          └ lost to a fault; its recovery starts it again
                       └ has its NPUs; serves after the phases of its start

`serving.scaling.core.fleet` supplies the targets and the names of the serving replicas to remove. This file models how
Serve and Ray carry them out live: replicas that do not run yet are stopped first
(`DeploymentScheduler._get_replicas_to_stop`), and a replica waits until Ray has NPUs for it. `InstanceLife` defines how
an instance drains.
"""

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from hardware.cost.cost_model import CostModel
from serving.config.simulation import SimulationConfig
from serving.instance.core.life import (
    STORED_LOOK_S,
    BeginLeaving,
    Inside,
    LifeEffect,
    LifeEvent,
    LifePhase,
    Stored,
    Wake,
)
from serving.values.pool_kinds import ENGINE_POOLS, POOL_KINDS
from serving.virtual.decode import DecodeInstance
from serving.virtual.event_queue import EventQueue
from serving.virtual.memory_pool import VirtualPool
from serving.virtual.prefill import PrefillInstance

if TYPE_CHECKING:
    from serving.virtual.supernode import Supernode


# Phases of an instance start in virtual time, and the pre-warmed processes that save the first phase.
#
#     process 30 s | weights: pool 5 s, storage 320 s | compiled graphs | serves
#     `---- skipped if processes are pre-warmed on enough NPUs; used processes are replaced after those 30 s
#
# A pre-warmed process has no model: it belongs to the platform, and its NPU is not allocated to an instance. Source:
# pre-warmed TEs of xDeepServe's parent system (arXiv 2501.14417, section 6.1).

PROCESS_S = 30.0
"""Start of an engine process without weights [s]. Source: xDeepServe's parent system, 26-32 s."""


@dataclass(frozen=True, slots=True)
class StartPhases:
    """Durations of the phases [s]."""

    process: float
    weights: float
    graphs: float

    def seconds(self, *, warm: bool) -> float:
        """From the decision to serving [s].

        Args:
            warm: whether the processes are already running.
        """
        return (0.0 if warm else self.process) + self.weights + self.graphs


def start_phases(cost: CostModel, config: SimulationConfig) -> StartPhases:
    """The configured phases. Instances pre-warmed with their model have only the last phase; a measured total start
    time is a single phase.
    """
    if config.start_s:
        return StartPhases(0.0, config.start_s, 0.0)
    source = config.model_load
    process = 0.0 if source == "prewarmed" else PROCESS_S
    return StartPhases(process, float(cost.model_load_s(source)), config.graphs_s)


class WarmProcesses:
    """Pre-warmed processes without a model.

    Args:
        npus: total NPUs of the processes.
    """

    def __init__(self, npus: int) -> None:
        self._npus = npus
        self._taken: deque[tuple[float, int]] = deque()
        """Used processes of the last `PROCESS_S`: when they are replaced [s], and their NPUs."""

    def npus(self, now: float) -> int:
        """NPUs with a pre-warmed process."""
        while self._taken and self._taken[0][0] <= now:
            self._npus += self._taken.popleft()[1]
        return self._npus

    def take(self, npus: int, now: float) -> bool:
        """Use the processes of so many NPUs; they are replaced after `PROCESS_S`.

        Returns: False if there are too few; then none are used.
        """
        if npus > self.npus(now):
            return False
        self._npus -= npus
        self._taken.append((now + PROCESS_S, npus))
        return True


# The model of Ray Serve's controller.

_FIRST_SERVED = sorted(ENGINE_POOLS, key=lambda pool: POOL_KINDS[pool].prefills)
"""Pools in the order in which they get NPUs that have become free: requests that already generate take precedence. An
assumption, since Ray guarantees no order among waiting replicas."""


class ServeReplicas:
    """The replicas of one supernode's engine pools.

    Args:
        phases: of a start.
    Attributes:
        warm: pre-warmed processes without an instance.
        targets: target number of instances by pool.
        replacing: number of lost instances by pool; the caller that adds an instance must also start it again.
    """

    def __init__(self, node: "Supernode", phases: StartPhases) -> None:
        self.phases = phases
        self.warm = WarmProcesses(node.config.simulation.warm_npus)
        self.targets = {pool: settings.replicas for pool, settings in node.config.pools.items()}
        self.replacing: Counter[str] = Counter()
        self._node = node
        self._drain_s = node.config.engine.drain_s
        self._starts: dict[str, list[int]] = {pool: [] for pool in self.targets}
        self._serial = 0

    def start_s(self, pool: str) -> float:
        """Time from a decision until one more instance serves [s]."""
        return self.phases.seconds(warm=self.warm.npus(self._node.queue.now) >= self._npus(pool))

    def serving(self, pool: str) -> int:
        """Instances that serve and do not drain."""
        return sum(not one.draining for one in self._node.instances(pool))

    def starting(self, pool: str) -> int:
        """Instances that have their NPUs and do not serve yet."""
        return len(self._starts[pool])

    def missing(self, pool: str) -> int:
        """Requested instances without NPUs; negative if there are too many instances."""
        return self.targets[pool] - self.serving(pool) - self.starting(pool) - self.replacing[pool]

    @property
    def starting_npus(self) -> int:
        """NPUs of starting instances."""
        return sum(len(starts) * self._npus(pool) for pool, starts in self._starts.items())

    @property
    def free_npus(self) -> int:
        """NPUs that are not allocated."""
        return self._node.placement.idle - self.starting_npus

    def set_target(self, pool: str, target: int, leaving: Sequence[str] = ()) -> None:
        """Set a pool's target: start instances as far as NPUs are free, or drain the surplus.

        Args:
            leaving: names of the serving instances to drain.
        """
        self.targets[pool] = target
        surplus = max(0, -self.missing(pool) - self.replacing[pool])
        for _ in range(min(surplus, self.starting(pool))):
            self._starts[pool].pop()
        for instance in [one for one in self._node.instances(pool) if one.name in leaving]:
            instance.on_empty = partial(self._soon_count, instance)
            self._tell(instance, Inside(instance.sequences))
            self._tell(instance, BeginLeaving(self._drain_s))
        self.fill()

    def fill(self) -> None:
        """Start missing instances as far as NPUs are free."""
        for pool in (one for one in _FIRST_SERVED if one in self.targets):
            while self.missing(pool) > 0 and self.free_npus >= self._npus(pool):
                self._serial += 1
                self._starts[pool].append(self._serial)
                now = self._node.queue.now
                seconds = self.phases.seconds(warm=self.warm.take(self._npus(pool), now))
                self._node.queue.at(now + seconds, self._started, (pool, self._serial))

    def replaced(self, pool: str) -> bool | None:
        """Remove a lost instance from `replacing`, unless its replacement has to wait for NPUs.

        Returns: whether to start the replacement now: False if the target no longer requires it; None if there are no
            NPUs yet.
        """
        wanted = self.missing(pool) >= 0
        if wanted and self.free_npus < self._npus(pool):
            return None
        self.replacing[pool] -= 1
        return wanted

    def _npus(self, pool: str) -> int:
        return self._node.config.pools[pool].npus_per_instance

    def _started(self, start: tuple[str, int]) -> None:
        pool, serial = start
        if serial not in self._starts[pool]:
            return  # no longer required
        self._starts[pool].remove(serial)
        if self._node.placement.idle >= self._npus(pool):  # else a fault has taken them: it waits again
            self._node.start_instance(pool)

    def _tell(self, instance: PrefillInstance | DecodeInstance, event: LifeEvent) -> None:
        """Pass an event to the life cycle of a draining instance, and carry out its effects."""
        queue, life = self._node.queue, instance.life
        awaited = life.next_wake()
        for effect in life.on(event, queue.now):
            match effect:
                case LifeEffect.STOP_ADMITTING:
                    self._node.drain(instance)
                case LifeEffect.OFFER:
                    instance.move_out()
                case LifeEffect.AWAIT_STORES:
                    queue.at(queue.now, self._look_at_stores, instance)
                case LifeEffect.GO:
                    self._node.stop_instance(instance)
                    self.fill()
        if (wake_at := life.next_wake()) is not None and wake_at != awaited:
            queue.at(wake_at, self._wake, instance)

    def _wake(self, instance: PrefillInstance | DecodeInstance) -> None:
        if instance.alive:
            self._tell(instance, Wake())

    def _soon_count(self, instance: PrefillInstance | DecodeInstance) -> None:
        """Recount the sequences after all other events of this time, because the last one has left."""
        self._node.queue.at(self._node.queue.now, self._count, instance)

    def _count(self, instance: PrefillInstance | DecodeInstance) -> None:
        if instance.alive:
            self._tell(instance, Inside(instance.sequences))

    def _look_at_stores(self, instance: PrefillInstance | DecodeInstance) -> None:
        if not instance.alive or instance.life.phase is not LifePhase.EMPTY:
            return
        if instance.at_rest():
            self._tell(instance, Stored())
        else:
            self._node.queue.at(self._node.queue.now + STORED_LOOK_S, self._look_at_stores, instance)


# Number of memory servers of the KV-cache pool in virtual time: added servers ramp up, removed ones drain first.


class MemorySizes:
    """The size of one KV-cache pool. A server starts at once, but ramps up over `[kvcache] ramp_s`.

    Args:
        most: largest number of servers that fit in the supernode's UB memory.
    """

    def __init__(self, queue: EventQueue, pool: VirtualPool, target: int, most: int) -> None:
        self.target = target
        self.most = most
        self._queue = queue
        self._pool = pool

    def set_target(self, target: int) -> None:
        """Set the target number of servers: new servers join, or the latest ones start to drain."""
        grows = min(target, self.most) - min(self.target, self.most)
        self.target = target
        now = self._queue.now
        for _ in range(grows):
            self._pool.add_server(now)
        for name in self._pool.active()[grows:] if grows < 0 else []:
            self._pool.remove_server(name, now)
