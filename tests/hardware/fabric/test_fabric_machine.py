"""The fabric as a ledger: every operation in any order, checked after each, and drained at the end."""

import math

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from hardware.fabric import Fabric, FabricError, Link, LinkId, Route, TransferId
from hardware.spec.plane import Plane

RATES = {"a": 100.0, "b": 40.0, "c": 70.0, "d": 100.0, "u": 300.0, "v": 0.7}
PLANES = {"u": Plane.UB, "v": Plane.VPC}
LINKS = [Link(LinkId(name), PLANES.get(name, Plane.RDMA), rate) for name, rate in RATES.items()]
names = st.sampled_from(sorted(RATES))
routes = st.lists(names, min_size=1, max_size=3, unique=True).map(lambda links: tuple(LinkId(link) for link in links))
ids = st.integers(0, 11).map(lambda number: TransferId(f"t{number}"))
sizes = st.one_of(st.just(0), st.integers(1, 5000))
latencies = st.sampled_from([0.0, 0.5, 3.0])
caps = st.one_of(st.none(), st.floats(0.1, 200.0))


class FabricMachine(RuleBasedStateMachine):
    """Compares the fabric with a plain record of requests and outcomes."""

    def __init__(self) -> None:
        super().__init__()
        self.fabric = Fabric(LINKS)
        self.now = 0.0
        self.asked: dict[TransferId, tuple[int, Route, float]] = {}
        self.moved = dict.fromkeys(Plane, 0)
        self.rates = dict(RATES)
        self.left = dict.fromkeys(Plane, 1.0)

    @rule(transfer=ids, route=routes, nbytes=sizes, latency=latencies, cap=caps)
    def start(self, transfer: TransferId, route: Route, nbytes: int, latency: float, cap: float | None) -> None:
        if transfer in self.asked:
            with pytest.raises(FabricError, match="already in progress"):
                self.fabric.start(self.now, transfer, route, nbytes, latency, cap)
            return
        end = self.fabric.start(self.now, transfer, route, nbytes, latency, cap)
        self.asked[transfer] = (nbytes, route, self.now + latency)
        assert end >= self.now + latency

    @precondition(lambda self: self.fabric.next_end() is not None)
    @rule()
    def finish_the_next(self) -> None:
        first = self.fabric.next_end()
        assert first is not None
        self.now, transfer = first
        nbytes, route, first_byte_s = self.asked.pop(transfer)
        assert self.now >= first_byte_s
        assert self.fabric.finish(self.now, transfer) == nbytes
        self.count(route, nbytes)

    @precondition(lambda self: self.asked)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        transfer = data.draw(st.sampled_from(sorted(self.asked)))
        nbytes, route, first_byte_s = self.asked.pop(transfer)
        moved = self.fabric.cancel(self.now, transfer)
        assert 0 <= moved <= (nbytes if self.now > first_byte_s else 0)
        self.count(route, moved)

    @rule(part=st.floats(0.0, 1.0))
    def let_time_pass(self, part: float) -> None:
        first = self.fabric.next_end()
        until = self.now + 1.0 if first is None else first[0]
        self.now = min(until, self.now + part * (until - self.now))

    @rule(link=names, rate=st.sampled_from([0.0, 10.0, 100.0]))
    def change_a_link(self, link: str, rate: float) -> None:
        self.fabric.set_capacity(self.now, LinkId(link), rate)
        self.rates[link] = rate

    @rule(plane=st.sampled_from(list(Plane)), left=st.sampled_from([0.0, 6 / 7, 1.0]))
    def scale_a_plane(self, plane: Plane, left: float) -> None:
        self.fabric.scale_plane(self.now, plane, left)
        self.left[plane] = left

    @rule(plane=st.sampled_from(list(Plane)))
    def read_a_plane(self, plane: Plane) -> None:
        reading = self.fabric.reading(self.now, plane)
        under_way = sum(nbytes for nbytes, route, _ in self.asked.values() if plane in planes_of(route))
        assert self.moved[plane] <= reading.moved_bytes <= self.moved[plane] + under_way
        assert reading.carried_bytes <= reading.offered_bytes * (1 + 1e-9) + 1e-6

    def count(self, route: Route, nbytes: int) -> None:
        for plane in planes_of(route):
            self.moved[plane] += nbytes

    @invariant()
    def the_books_agree(self) -> None:
        self.fabric.check()
        assert len(self.fabric) == len(self.asked)
        for plane, moved in self.moved.items():
            assert self.fabric.bytes_moved(plane) == moved
        for link, rate in self.rates.items():
            assert self.fabric.capacity(LinkId(link)) == rate * self.left[PLANES.get(link, Plane.RDMA)]
        for transfer, (_, route, _) in self.asked.items():
            broken = any(self.fabric.capacity(link) == 0 for link in route)
            assert (self.fabric.rate(transfer) == 0) == broken

    def teardown(self) -> None:
        """Repair every link: then no transfer may be stuck, and every requested byte arrives."""
        for plane in Plane:
            self.scale_a_plane(plane, 1.0)
        for link, rate in RATES.items():
            self.change_a_link(link, rate)
        while self.asked:
            self.finish_the_next()
            self.the_books_agree()
        assert self.fabric.next_end() is None
        assert math.isfinite(self.now)


def planes_of(route: Route) -> set[Plane]:
    """Planes that a route crosses."""
    return {PLANES.get(link, Plane.RDMA) for link in route}


TestFabricMachine = FabricMachine.TestCase
