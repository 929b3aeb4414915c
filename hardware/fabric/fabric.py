"""Transfers that share links, event by event.

The fabric is a fluid: a transfer has a rate, and the rates of all transfers are max-min fair (`sharing`). Rates change
only when a transfer starts, ends or is cancelled, or when a link changes; between these moments the state is known, so
the driver gets the next end, waits until then in its own time, and reports it:

    fabric.start(now, ...) ; fabric.next_end() -> (t, id) ; ... ; fabric.finish(t, id) ; fabric.next_end() -> ...

Any call that changes the fabric may move the next end, earlier or later: query it again. The fabric has no clock; it
refuses a `now` that goes back, or that is past an unfinished end.

Cost: a transfer on links without other transfers is O(links); with sharing, the cost covers only transfers connected by
a chain of shared links. Transfers that end at the same time end in the order of their ids.

The latency comes before the first byte. The transfer holds its share of the links during the latency, which overstates
its usage by latency times rate: 0.05 % for the handoff of a 4K prompt over one RDMA link.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

from hardware.errors import FabricError
from hardware.fabric.audit import audit
from hardware.fabric.flow import Flow, Path, Pipe, fill, joined, settle
from hardware.fabric.routes import Link, LinkId, Route, TransferId
from hardware.spec.plane import Plane
from hardware.units import Bytes, Seconds

# Counters of a plane: bytes moved, and bytes that it could have carried.


@dataclass(frozen=True, slots=True)
class PlaneReading:
    """A plane's counters at one moment; all grow from the start of the fabric.

    Attributes:
        moved_bytes: payload of all transfers so far, each counted once, including the moved part of cancelled ones.
        carried_bytes: the same, counted on every link of the plane that it crossed.
        offered_bytes: capacity of all links of the plane together, times time.
    """

    at_s: Seconds
    moved_bytes: Bytes
    carried_bytes: float
    offered_bytes: float


class PlaneMeter:
    """Counters of one plane that the fabric keeps: bytes moved by ended transfers, and the integral of the capacity."""

    __slots__ = ("_capacity", "_carried", "_changed_s", "_moved", "_offered", "left", "plane")

    def __init__(self, plane: Plane, bytes_per_s: float) -> None:
        self.plane = plane
        self.left = 1.0
        """Part of the plane's capacity that works; a lost sub-plane takes its part away."""
        self._capacity = bytes_per_s
        self._changed_s = 0.0
        self._offered = 0.0
        self._moved = 0
        self._carried = 0

    @property
    def moved_bytes(self) -> Bytes:
        """Payload of ended transfers."""
        return Bytes(self._moved)

    def ended(self, nbytes: int, links: int) -> None:
        """Count the bytes that a transfer moved over this plane. Effects: the counters grow."""
        self._moved += nbytes
        self._carried += nbytes * links

    def set_capacity(self, now: float, bytes_per_s: float) -> None:
        """From now on, all links together have this much. Effects: closes the stretch before."""
        self._offered += self._capacity * (now - self._changed_s)
        self._changed_s = now
        self._capacity = bytes_per_s

    def reading(self, now: float, moved: float, carried: float) -> PlaneReading:
        """The counters, including the moved and carried bytes of running transfers."""
        return PlaneReading(
            Seconds(now),
            Bytes(self._moved + int(moved)),
            self._carried + carried,
            self._offered + self._capacity * (now - self._changed_s),
        )


# Transfers that share links, event by event.

_SPARE_ENTRIES = 64
"""Stale heap entries to tolerate, in addition to three for each transfer, before they are removed."""


class Fabric:
    """Links and the transfers on them. Times are seconds of one clock that starts at 0; rates are bytes per second."""

    def __init__(self, links: Iterable[Link]) -> None:
        """
        Raises: FabricError if two links have one name.
        """
        self._pipes: dict[LinkId, Pipe] = {}
        for link in links:
            if link.name in self._pipes:
                raise FabricError(f"two links are called {link.name}")
            self._pipes[link.name] = Pipe(len(self._pipes), link.name, link.plane, link.bytes_per_s)
        self._meters = {plane: PlaneMeter(plane, self._capacity_of(plane)) for plane in Plane}
        self._paths: dict[Route, Path] = {}
        self._flows: dict[TransferId, Flow] = {}
        self._ends: list[tuple[float, TransferId]] = []
        """Heap of predicted ends; an entry is stale once its transfer has ended or its end has moved."""
        self._now = 0.0

    def __len__(self) -> int:
        return len(self._flows)

    def start(
        self,
        now: float,
        transfer: TransferId,
        route: Route,
        nbytes: int,
        latency_s: float = 0.0,
        cap_bytes_per_s: float | None = None,
    ) -> Seconds:
        """Puts a transfer on its way.

        Args:
            transfer: no transfer under way has this id; it may be used again later.
            route: links of this fabric, each once.
            nbytes: 0 is allowed; such a transfer takes its latency.
            latency_s: before the first byte.
            cap_bytes_per_s: the most that the two ends manage, as measured; the links alone limit it if absent.
        Returns: its end if the state does not change until then; infinite if a link on its way is broken.
        Raises: FabricError if the id is in use, a number is impossible, the route is empty or has unknown or repeated
            links, or the time does not fit.
        Effects: may move the ends of transfers that share links with it, both ways.
        """
        self._enter(now)
        cap = math.inf if cap_bytes_per_s is None else cap_bytes_per_s
        if transfer in self._flows:
            raise FabricError(f"transfer {transfer} is already in progress")
        if nbytes < 0 or not 0 <= latency_s < math.inf or not cap > 0:
            raise FabricError(
                f"transfer {transfer}: {nbytes} bytes, latency {latency_s} s, cap {cap} bytes/s; bytes and latency "
                "must not be negative, the cap must be above zero"
            )
        path = self._paths.get(route) or self._resolve(route)
        flow = Flow(transfer, path, nbytes, now + latency_s, cap)
        self._flows[transfer] = flow
        rate, alone = cap, True
        for pipe in path.pipes:
            if pipe.flows:
                alone = False
            elif pipe.capacity < rate:
                rate = pipe.capacity
            pipe.flows[flow] = None
        if alone:
            flow.rate = rate
            self._foretell(flow)
        else:
            self._share(now, path.pipes)
        return Seconds(flow.end)

    def next_end(self) -> tuple[Seconds, TransferId] | None:
        """The transfer that ends next, and when; of those that end together the one with the lowest id.

        Returns: None if there are no transfers, or only stalled ones.
        Effects: none that show; stale entries are dropped.
        """
        ends = self._ends
        while ends:
            end, transfer = ends[0]
            flow = self._flows.get(transfer)
            if flow is not None and flow.end == end:
                return Seconds(end), transfer
            heappop(ends)
        return None

    def finish(self, now: float, transfer: TransferId) -> Bytes:
        """Removes an ended transfer from its links.

        Args:
            now: its end, as returned by `next_end`.
        Returns: its bytes, all of which have arrived.
        Raises: FabricError if there is no such transfer, it has not ended yet, or the time does not fit.
        Effects: transfers on the same links share its capacity; the planes' counters grow.
        """
        self._enter(now)
        flow = self._known(transfer)
        if now < flow.end:
            raise FabricError(f"transfer {transfer} ends at {flow.end} s, not at {now} s; call next_end again")
        self._leave(now, flow, flow.nbytes)
        return Bytes(flow.nbytes)

    def finish_due(self, now: float) -> list[TransferId]:
        """Takes all transfers that end at this moment off their links.

        Returns: their ids, in the order in which `next_end` and `finish` would have named them one by one.
        Raises: FabricError if the time does not fit.
        Effects: as `finish`, of each.
        """
        self._enter(now)
        ended: list[TransferId] = []
        while (following := self.next_end()) is not None and following[0] <= now:
            flow = self._flows[following[1]]
            self._leave(now, flow, flow.nbytes)
            ended.append(following[1])
        return ended

    def cancel(self, now: float, transfer: TransferId) -> Bytes:
        """Stops a transfer on its way.

        Returns: whole bytes that had moved; they count as moved.
        Raises: FabricError if it is not under way, or if the time does not fit.
        Effects: as `finish`.
        """
        self._enter(now)
        flow = self._known(transfer)
        moved = flow.nbytes - math.ceil(flow.left_at(now))
        self._leave(now, flow, moved)
        return Bytes(moved)

    def set_capacity(self, now: float, link: LinkId, bytes_per_s: float) -> None:
        """Changes what one link can carry: a fault, or its repair.

        Args:
            bytes_per_s: before what its plane has lost; 0 stalls the transfers that cross it.
        Raises: FabricError if there is no such link, the capacity is impossible, or the time does not fit.
        Effects: moves the ends of transfers that share with it.
        """
        self._enter(now)
        pipe = self._pipe(link)
        if not 0 <= bytes_per_s < math.inf:
            raise FabricError(f"link {link}: {bytes_per_s} bytes/s; it must be finite and not negative")
        pipe.base = bytes_per_s
        meter = self._meters[pipe.plane]
        pipe.capacity = bytes_per_s * meter.left
        meter.set_capacity(now, self._capacity_of(pipe.plane))
        self._share(now, (pipe,))

    def scale_plane(self, now: float, plane: Plane, left: float) -> None:
        """Every link of a plane has this part of its own capacity: six of seven UB sub-planes left are 6/7.

        Args:
            left: of the links' own capacity, not of what was left before; 0..1.
        Raises: FabricError if the part is not within 0..1, or the time does not fit.
        Effects: moves the ends of transfers on the plane.
        """
        self._enter(now)
        if not 0 <= left <= 1:
            raise FabricError(f"plane {plane}: {left} of its capacity cannot be left; give a part from 0 to 1")
        meter = self._meters[plane]
        meter.left = left
        pipes = [pipe for pipe in self._pipes.values() if pipe.plane is plane]
        for pipe in pipes:
            pipe.capacity = pipe.base * left
        meter.set_capacity(now, self._capacity_of(plane))
        self._share(now, pipes)

    def rate(self, transfer: TransferId) -> float:
        """Rate of a transfer now [bytes/s]; during its latency, the rate that it will have.

        Raises: FabricError if it is not under way.
        """
        return self._known(transfer).rate

    def capacity(self, link: LinkId) -> float:
        """Capacity of a link now [bytes/s].

        Raises: FabricError if there is no such link.
        """
        return self._pipe(link).capacity

    def bytes_moved(self, plane: Plane) -> Bytes:
        """Payload of ended transfers over a plane, including the moved part of cancelled ones."""
        return self._meters[plane].moved_bytes

    def reading(self, now: float, plane: Plane) -> PlaneReading:
        """A plane's counters, transfers under way included; two readings give its utilisation between them.

        Raises: FabricError if the time does not fit.
        """
        self._enter(now)
        moved = carried = 0.0
        for flow in self._flows.values():
            for crossed, links in flow.planes:
                if crossed is plane:
                    done = flow.nbytes - flow.left_at(now)
                    moved += done
                    carried += done * links
        return self._meters[plane].reading(now, moved, carried)

    def check(self) -> None:
        """Asserts that the ledger holds: no link is over its capacity, every rate is fair, no transfer is forgotten."""
        audit(self._pipes.values(), self._flows, self._ends)

    def _enter(self, now: float) -> None:
        if now < self._now:
            raise FabricError(f"time went back: {now} s comes after {self._now} s")
        if self._ends and self._ends[0][0] < now:  # perhaps a stale entry
            first = self.next_end()
            if first is not None and first[0] < now:
                raise FabricError(f"transfer {first[1]} ended at {first[0]} s; finish it before anything at {now} s")
        self._now = now

    def _leave(self, now: float, flow: Flow, moved: int) -> None:
        del self._flows[flow.name]
        alone = True
        for pipe in flow.pipes:
            del pipe.flows[flow]
            alone = alone and not pipe.flows
        for plane, links in flow.planes:
            self._meters[plane].ended(moved, links)
        if not alone:
            self._share(now, flow.pipes)

    def _share(self, now: float, pipes: Iterable[Pipe]) -> None:
        """New rates for all transfers affected by a change on these pipes."""
        flows, shared = joined(pipes)
        settle(flows, now)
        fill(flows, shared)
        for flow in flows:
            self._foretell(flow)

    def _foretell(self, flow: Flow) -> None:
        if len(self._ends) > _SPARE_ENTRIES + 4 * len(self._flows):
            self._ends = [(flow.end, flow.name) for flow in self._flows.values() if flow.end < math.inf]
            heapify(self._ends)
        before = flow.end
        flow.end = end = flow.updated + flow.remaining / flow.rate if flow.rate > 0 else math.inf
        if end != before and end != math.inf:
            heappush(self._ends, (end, flow.name))

    def _resolve(self, route: Route) -> Path:
        pipes = tuple(self._pipe(link) for link in route)
        if not pipes or len(set(pipes)) != len(pipes):
            raise FabricError(f"route {route!r} must name at least one link, each once")
        self._paths[route] = path = Path(pipes)
        return path

    def _known(self, transfer: TransferId) -> Flow:
        flow = self._flows.get(transfer)
        if flow is None:
            raise FabricError(f"transfer {transfer} is not in progress")
        return flow

    def _pipe(self, link: LinkId) -> Pipe:
        pipe = self._pipes.get(link)
        if pipe is None:
            raise FabricError(f"there is no link {link}; this fabric has {len(self._pipes)}")
        return pipe

    def _capacity_of(self, plane: Plane) -> float:
        return sum(pipe.capacity for pipe in self._pipes.values() if pipe.plane is plane)
