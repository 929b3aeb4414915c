"""The network planes of one supernode in virtual time: transfers over shared links.

Handoffs cross two die links of the RDMA plane. Cached blocks cross UB, or VPC, through one port per instance with the
bandwidth of its NPUs together; the memory servers' side is far wider (32 nodes of 640 GB/s) and is not modelled.
Expert traffic is part of the step times; its bytes are counted, but it uses no bandwidth of these links.
"""

from collections.abc import Callable
from typing import Any

from hardware.fabric import Fabric, Link, LinkId, Route, TransferId
from hardware.fabric.routes import Direction, link_id, rdma_links, route, source_rank
from hardware.spec.plane import Plane
from hardware.topology import DieId, NpuId, Topology
from serving.ids import ReplicaId
from serving.virtual.event_queue import EventQueue

RDMA_LATENCY_S = 5.5e-6
"""Source: Huawei's performance model (Ascend/msmodeling), between nodes; the paper gives no RDMA latency."""

Done = Callable[[Any], None]


class Network:
    """Transfers in progress, with a callback for the end of each.

    Args:
        pool_bytes_per_s: rate at which one NPU loads from the KV-cache pool.
        pool_plane: that the pool's blocks cross. pool_latency_s: added to each of their transfers [s].
    """

    def __init__(
        self,
        queue: EventQueue,
        topology: Topology,
        pool_bytes_per_s: float,
        pool_plane: Plane = Plane.UB,
        pool_latency_s: float = 0.0,
    ) -> None:
        self._queue = queue
        self._pool_latency_s = pool_latency_s
        self._pool_rate = pool_bytes_per_s
        ports = [Link(_port(npu, way), pool_plane, pool_bytes_per_s) for npu in topology.npu_ids() for way in Direction]
        self.fabric = Fabric((*rdma_links(topology, topology.die_ids()), *ports))
        self._dies: dict[ReplicaId, tuple[DieId, ...]] = {}
        self._ports: dict[ReplicaId, dict[Direction, Route]] = {}
        self._routes: dict[tuple[ReplicaId, ReplicaId, int], Route] = {}
        self._waiting: dict[TransferId, tuple[Done, Any]] = {}
        self._serial = 0
        self._planned: float | None = None

    @property
    def now(self) -> float:
        """Virtual time [s]."""
        return self._queue.now

    @property
    def ub_bytes(self) -> int:
        """Bytes moved over UB between instances and the KV-cache pool."""
        return int(self.fabric.bytes_moved(Plane.UB))

    @property
    def vpc_bytes(self) -> int:
        """Bytes moved over VPC between instances and the KV-cache pool."""
        return int(self.fabric.bytes_moved(Plane.VPC))

    @property
    def rdma_bytes(self) -> int:
        """Bytes moved over RDMA."""
        return int(self.fabric.bytes_moved(Plane.RDMA))

    def join(self, name: ReplicaId, dies: tuple[DieId, ...], npus: int) -> None:
        """Add an instance on these dies, with a port as wide as its `npus`."""
        self._dies[name] = dies
        self._ports[name] = {way: (_port(dies[0].npu, way),) for way in Direction}
        for (port,) in self._ports[name].values():
            self.fabric.set_capacity(self.now, port, self._pool_rate * npus)
        self._plan()  # a transfer of a removed instance through the same port may now end at another time

    def leave(self, name: ReplicaId) -> None:
        """Remove an instance. Its transfers in progress still finish."""
        self._dies.pop(name, None)
        self._ports.pop(name, None)
        self._routes = {key: found for key, found in self._routes.items() if name not in key[:2]}

    def later(self, seconds: float, done: Done, argument: Any) -> None:  # noqa: ANN401 - handed to `done`
        """Call `done(argument)` after `seconds`."""
        self._queue.at(self._queue.now + seconds, done, argument)

    def knows(self, name: ReplicaId) -> bool:
        """Whether an instance is up."""
        return name in self._dies

    def handoff(
        self,
        source: ReplicaId,
        target: ReplicaId,
        die: int,
        nbytes: int,
        done: Done,
        argument: Any,  # noqa: ANN401 - handed to `done`
        source_die: int = 0,
    ) -> None:
        """Move KV blocks from a prefill instance to a die of a decode instance, then call `done(argument)`.

        Args:
            source_die: used only if source and target are the same instance, which moves sequences as it shrinks.
        """
        if source not in self._dies or target not in self._dies:
            self._queue.at(self._queue.now, done, argument)
            return
        if source == target:
            dies = self._dies[source]
            within = route(Plane.RDMA, dies[source_die], dies[die])
            self._begin(within, nbytes, RDMA_LATENCY_S, done, argument)
            return
        key = source, target, die
        path = self._routes.get(key)
        if path is None:
            sources, targets = self._dies[source], self._dies[target]
            path = route(Plane.RDMA, sources[source_rank(die, len(targets), len(sources))], targets[die])
            self._routes[key] = path
        self._begin(path, nbytes, RDMA_LATENCY_S, done, argument)

    def from_pool(
        self,
        instance: ReplicaId,
        nbytes: int,
        latency_s: float,
        done: Done,
        argument: Any,  # noqa: ANN401 - handed to `done`
    ) -> None:
        """Load cached blocks into an instance, then call `done(argument)`."""
        self._through_port(instance, Direction.IN, nbytes, latency_s, done, argument)

    def to_pool(
        self,
        instance: ReplicaId,
        nbytes: int,
        latency_s: float,
        done: Done,
        argument: Any,  # noqa: ANN401 - handed to `done`
    ) -> None:
        """Store an instance's blocks, then call `done(argument)`."""
        self._through_port(instance, Direction.OUT, nbytes, latency_s, done, argument)

    def changed(self) -> None:
        """Reschedule the next end of a transfer after capacities have changed."""
        self._plan()

    def _through_port(
        self,
        instance: ReplicaId,
        way: Direction,
        nbytes: int,
        latency_s: float,
        done: Done,
        argument: Any,  # noqa: ANN401 - handed to `done`
    ) -> None:
        ports = self._ports.get(instance)
        if ports is None or not nbytes:
            self._queue.at(self._queue.now + latency_s, done, argument)
        else:
            self._begin(ports[way], nbytes, latency_s + self._pool_latency_s, done, argument)

    def _begin(self, path: Route, nbytes: int, latency_s: float, done: Done, argument: Any) -> None:  # noqa: ANN401
        self._serial += 1
        transfer = TransferId(f"{self._serial:012d}")
        self._waiting[transfer] = done, argument
        self.fabric.start(self._queue.now, transfer, path, nbytes, latency_s)
        self._plan()

    def _plan(self) -> None:
        """Schedule an event for the next end of a transfer, which may now be earlier or later than before."""
        following = self.fabric.next_end()
        if following is None:
            self._planned = None
        elif following[0] != self._planned:
            self._planned = following[0]
            self._queue.at(following[0], self._due, following[0])

    def _due(self, when: float) -> None:
        if when != self._planned:
            return
        self._planned = None
        ended = self.fabric.finish_due(self._queue.now)
        self._plan()
        for transfer in ended:
            done, argument = self._waiting.pop(transfer)
            done(argument)


def _port(npu: NpuId, way: Direction) -> LinkId:
    return LinkId(f"{link_id(Plane.UB, npu, way)}/pool")
