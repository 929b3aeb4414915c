"""Tables 1 and 11, Figure 24: transfers over the UB fabric, its switches, and blocks of NPUs that fill it."""

import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from hardware.cost.published import RowKind
from hardware.fabric import Fabric, TransferId
from hardware.fabric.routes import route, ub_links, ub_measure
from hardware.spec.catalog import CLOUDMATRIX384, NODE_L1_UPLINKS, NODE_NPUS, UB_L2_PORTS, UB_SUBPLANES
from hardware.spec.plane import Plane
from hardware.topology import CpuId, DieId, Topology
from hardware.units import GIGA, MICROSECOND
from serving.tools.paper.experiment import Curve, Experiment, Findings, How, Plot, Row, Setting

# Table 11: UB switches that a supernode of some size needs, and how far their ports are used.

_TABLE_11_SOURCE = "CloudMatrix-Infer, Table 11"
_CHIPS_PER_SWITCH = 2
# NPUs, logical switches, use of their ports [%].
_TABLE_11_PUBLISHED = ((384, 56, 100), (352, 56, 92), (288, 42, 100), (256, 42, 89), (192, 28, 100))


def switches_for(npus: int) -> tuple[int, float]:
    """Logical switches of the second tier, each as wide as two chips, and the used share of their ports.

    Every node has the same uplinks into each sub-plane, and sub-planes are identical.
    """
    nodes = math.ceil(npus / NODE_NPUS.whole)
    ports = UB_L2_PORTS.whole * _CHIPS_PER_SWITCH
    in_a_plane = math.ceil(nodes * NODE_L1_UPLINKS.whole / ports)
    switches = in_a_plane * UB_SUBPLANES.whole
    return switches, nodes * NODE_L1_UPLINKS.whole * UB_SUBPLANES.whole / (switches * ports)


def run_table_11(_setting: Setting) -> Findings:
    """Wire the published sizes."""
    rows: list[Row] = []
    for npus, switches, used in _TABLE_11_PUBLISHED:
        ours, share = switches_for(npus)
        rows.append(
            Row(
                f"switches-{npus}",
                f"{npus} NPUs",
                switches,
                ours,
                "switches",
                How.MODEL,
                _TABLE_11_SOURCE,
                RowKind.DERIVED,
            )
        )
        rows.append(
            Row(
                f"used-{npus}",
                f"{npus} NPUs",
                used,
                100 * share,
                "% of ports",
                How.MODEL,
                _TABLE_11_SOURCE,
                RowKind.DERIVED,
            )
        )
    return Findings(sorted(rows, key=lambda row: row.unit))


TABLE_11 = Experiment(
    "table11",
    "Switches of a supernode and their use",
    "ports counted over nodes, sub-planes and switches",
    run_table_11,
)


# Figure 24: share of a supernode that can be allocated in indivisible blocks, over its size.

_FIGURE_24_SOURCE = "CloudMatrix-Infer 6.1.2, Figure 24"
MEANS = (10.08, 11.28)
"""Mean sizes of tightly coupled blocks that the paper names [NPUs]."""
_SIZES = (64, 96, 128, 160, 192, 224, 256, 288, 320, 352, 384)
_WARM_UP = 0.1
FIGURE_24_NODE_NPUS = 8


@dataclass(frozen=True, slots=True)
class SizeFamily:
    """A distribution of block sizes with a free mean.

    Attributes:
        sizes: that occur [NPUs].
        weight: of a size, before the tilt that meets the mean.
    """

    name: str
    sizes: Sequence[int]
    weight: Callable[[int], float]

    def probabilities(self, mean: float) -> list[float]:
        """Weights times size to a power that is found so that the mean is met."""
        low, high = -8.0, 8.0
        for _ in range(80):
            middle = (low + high) / 2
            low, high = (middle, high) if self._mean(middle) < mean else (low, middle)
        weights = self._weights(low)
        total = sum(weights)
        return [weight / total for weight in weights]

    def _weights(self, power: float) -> list[float]:
        return [self.weight(size) * size**power for size in self.sizes]

    def _mean(self, power: float) -> float:
        weights = self._weights(power)
        return sum(w * s for w, s in zip(weights, self.sizes, strict=True)) / sum(weights)


def _powers(largest: int) -> tuple[int, ...]:
    return tuple(1 << n for n in range(largest.bit_length()))


POWERS_128 = SizeFamily("powers of two up to 128", _powers(128), lambda _size: 1.0)
POWERS_64 = SizeFamily("powers of two up to 64", _powers(64), lambda _size: 1.0)
POWERS_32 = SizeFamily("powers of two up to 32", _powers(32), lambda _size: 1.0)
EVEN = SizeFamily("every size up to 64, power law", tuple(range(1, 65)), lambda _size: 1.0)
EXPONENTIAL = SizeFamily("every size up to 64, exponential", tuple(range(1, 65)), lambda size: math.exp(-size / 10))
FAMILIES = (POWERS_128, POWERS_64, POWERS_32, EVEN, EXPONENTIAL)
CHOSEN = POWERS_64


def allocation_rate(npus: int, sizes: Sequence[int], weights: Sequence[float], steps: int, rng: random.Random) -> float:
    """Share of a supernode's NPUs that are allocated, in the long run, while more blocks wait than fit.

    Blocks come in order and none overtakes; running ones end in random order. A block of up to a node's NPUs is placed
    on the node with the fewest left over; a larger one takes whole free nodes and, for what remains, part of another.
    """
    free = [FIGURE_24_NODE_NPUS] * (npus // FIGURE_24_NODE_NPUS)
    running: list[list[tuple[int, int]]] = []
    used = 0
    total, samples = 0, 0
    drawn = _draws(sizes, weights, rng)
    waiting = next(drawn)
    for step in range(steps):
        while waiting > npus or (place := _place(free, waiting)) is not None:
            if waiting <= npus:
                assert place is not None, "the loop condition has just found it"
                for node, count in place:
                    free[node] -= count
                running.append(place)
                used += waiting
            waiting = next(drawn)
        if step >= _WARM_UP * steps:
            total += used
            samples += 1
        chosen = rng.randrange(len(running))
        running[chosen], running[-1] = running[-1], running[chosen]
        for node, count in running.pop():
            free[node] += count
            used -= count
    return total / samples / npus


def _draws(sizes: Sequence[int], weights: Sequence[float], rng: random.Random) -> Iterator[int]:
    """Block sizes, endlessly. Effects: advances `rng`."""
    while True:
        yield from rng.choices(sizes, weights, k=1024)


def _place(free: list[int], size: int) -> list[tuple[int, int]] | None:
    """Nodes that a block gets, each with its number of NPUs; None if it does not fit."""
    whole, rest = divmod(size, FIGURE_24_NODE_NPUS)
    places: list[tuple[int, int]] = []
    if whole:
        empty = [node for node, left in enumerate(free) if left == FIGURE_24_NODE_NPUS]
        if len(empty) < whole:
            return None
        places = [(node, FIGURE_24_NODE_NPUS) for node in empty[:whole]]
    if rest:
        taken = {node for node, _ in places}
        fitting = [(left, node) for node, left in enumerate(free) if left >= rest and node not in taken]
        if not fitting:
            return None
        places.append((min(fitting)[1], rest))
    return places


def rates(setting: Setting, family: SizeFamily, mean: float, npus: Sequence[int], steps: int) -> list[float]:
    """Allocation rates of several sizes of supernode [%]."""
    weights = family.probabilities(mean)
    return [
        100 * allocation_rate(size, family.sizes, weights, steps, setting.stream(f"fig24/{family.name}/{mean}/{size}"))
        for size in npus
    ]


def run_figure_24(setting: Setting) -> Findings:
    """The chosen family over all sizes, the others where figures are published."""
    steps = setting.size(30_000, 4_000)
    sizes = (64, 128, 224, 304, 384) if setting.quick else _SIZES
    curves = {mean: rates(setting, CHOSEN, mean, sizes, steps) for mean in MEANS}
    at = {(mean, size): rate for mean in MEANS for size, rate in zip(sizes, curves[mean], strict=True)}
    small, large = MEANS
    rows = (
        Row("384-small", f"384 NPUs, mean block {small}", 94, at[small, 384], "% allocated", How.RUN, _FIGURE_24_SOURCE,
            relation=">", kind=RowKind.FITTED, headline=True),
        Row("224-small", f"224 NPUs, mean block {small}", 91, at[small, 224], "% allocated", How.RUN, _FIGURE_24_SOURCE,
            relation="<", kind=RowKind.FITTED, headline=True),
        Row("224-large", f"224 NPUs, mean block {large}", 85, at[large, 224], "% allocated", How.RUN, _FIGURE_24_SOURCE,
            relation="<", kind=RowKind.FITTED, headline=True),
    )  # fmt: skip
    left = "; ".join(f"{row.label}: {100 - row.published} published, {100 - (row.ours or 0):.1f} ours" for row in rows)
    notes = (_about(), f"In the share that is left over: {left} %.", _sensitivity(setting, steps))
    return Findings(rows, notes, (_plot(sizes, curves),))


def _about() -> str:
    return (
        f"The distribution of block sizes is not published. Of the families below, {CHOSEN.name} came closest to all "
        "three bounds and was chosen for that; each is weighted by a power of the size that meets the published mean. "
        "Blocks wait in order of arrival, always more than fit, end in random order, and are placed by best fit within "
        "nodes of 8 NPUs, larger ones on whole nodes."
    )


def _sensitivity(setting: Setting, steps: int) -> str:
    small, large = MEANS
    parts = []
    for family in FAMILIES:
        one, two = rates(setting, family, small, (384, 224), steps)
        (three,) = rates(setting, family, large, (224,), steps)
        parts.append(f"{family.name} {one:.1f} / {two:.1f} / {three:.1f} %")
    return "Sensitivity, in the order of the rows: " + "; ".join(parts) + "."


def _plot(sizes: Sequence[int], curves: dict[float, list[float]]) -> Plot:
    return Plot(
        "share of NPUs that is allocated", "NPUs of the supernode", "%",
        (
            *(Curve(f"ours, mean block {mean}", sizes, curves[mean]) for mean in MEANS),
            Curve("published bounds", (384, 224, 224), (94, 91, 85), published=True),
        ),
    )  # fmt: skip


FIGURE_24 = Experiment(
    "fig24",
    "Allocation rate over the size of the supernode",
    "seeded Monte-Carlo of blocks that wait, run and end",
    run_figure_24,
    3.2,
    0.3,
)


# Table 1: what one die reads and writes over the UB fabric.

_SOURCE = "CloudMatrix-Infer, Table 1"
_LARGE, _SMALL = 1 << 30, 512
# Bandwidth [GB/s] and 512-byte latency [us], in a node and between nodes.
_PUBLISHED = {
    ("NPU", "read"): ((167, 164), (1.2, 1.9)),
    ("NPU", "write"): ((137, 135), (1.3, 2.1)),
    ("CPU", "read"): ((151, 147), (1.0, 1.7)),
    ("CPU", "write"): ((110, 107), (1.1, 1.9)),
}
_PLACES = ("in a node", "between nodes")


def run_table_1(_setting: Setting) -> Findings:
    """Move 1 GiB, then 512 B, alone on the fabric, along each of the paths."""
    rows: list[Row] = []
    for (other, operation), (rates, latencies) in _PUBLISHED.items():
        for place, rate, latency in zip(_PLACES, rates, latencies, strict=True):
            far = place != _PLACES[0]
            large = _transfer_s(other, operation, _LARGE, far=far)
            small = _transfer_s(other, operation, _SMALL, far=far)
            label = f"NPU–{other} {operation}, {place}"
            key = f"{other}-{operation}-{'far' if far else 'near'}".lower()
            reached, took = _LARGE / large / GIGA, small / MICROSECOND
            rows += [
                Row(f"rate-{key}", label, rate, reached, "GB/s per die", How.RUN, _SOURCE, RowKind.READ_BACK),
                Row(f"latency-{key}", f"{label}, 512 B", latency, took, "us", How.RUN, _SOURCE, RowKind.READ_BACK),
            ]
    return Findings(
        sorted(rows, key=lambda row: row.key.startswith("latency")),
        ("The simulator's fabric is given these figures as caps and latencies: the row checks that it keeps to them.",),
    )


def _transfer_s(other: str, operation: str, nbytes: int, *, far: bool) -> float:
    topology = Topology(CLOUDMATRIX384, 2)
    npus = list(topology.npu_ids())
    die = next(iter(topology.die_ids(npus[0])))
    cpus = list(topology.cpu_ids())
    end: DieId | CpuId
    if other == "CPU":
        end = cpus[-1] if far else cpus[0]
    else:
        end = next(iter(topology.die_ids(npus[-1] if far else npus[1])))
    write = operation == "write"
    measure = ub_measure(topology, die, end, write=write)
    fabric = Fabric(ub_links(topology, npus, cpus))
    way = route(Plane.UB, die, end) if write else route(Plane.UB, end, die)
    return fabric.start(0.0, TransferId("one"), way, nbytes, measure.latency_s, measure.bytes_per_s)


TABLE_1 = Experiment(
    "table1",
    "UB paths of one die",
    "one transfer at a time over the simulated fabric: 1 GiB for the bandwidth, 512 B for the latency",
    run_table_1,
)
