"""Table 1: what one die reads and writes over the UB fabric."""

from hardware.cost.row_kind import RowKind
from hardware.fabric import Fabric, TransferId
from hardware.fabric.routes import route, ub_links, ub_measure
from hardware.spec.catalog import CLOUDMATRIX384
from hardware.spec.plane import Plane
from hardware.topology import CpuId, DieId, Topology
from hardware.units import GIGA, MICROSECOND
from serving.tools.paper.experiment import Experiment
from serving.tools.paper.rows import Findings, How, Row
from serving.tools.paper.setting import Setting

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


def run(_setting: Setting) -> Findings:
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


EXPERIMENT = Experiment(
    "table1",
    "UB paths of one die",
    "one transfer at a time over the simulated fabric: 1 GiB for the bandwidth, 512 B for the latency",
    run,
)
