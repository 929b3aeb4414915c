"""Table 2: eight instances that load a model at once, and that switch between eight models at random."""

import random
from collections import OrderedDict

from hardware.cost import CostModel
from hardware.cost.row_kind import RowKind
from hardware.fabric import Fabric, Link, LinkId, TransferId
from hardware.spec.plane import Plane
from serving.tools.paper.experiment import Experiment
from serving.tools.paper.rows import Findings, How, Row
from serving.tools.paper.setting import Setting

_SOURCE = "CloudMatrix-Infer, Table 2"
INSTANCES = 8
MODELS = 8
_BLOCKS = 671
"""The model moves into the pool in so many pieces, and on to the instances piece by piece."""
_BUCKET, _POOL = LinkId("bucket"), "pool to instance"


def run(setting: Setting) -> Findings:
    """Cold start with and without the pool, then random switching with room for none, one, and all of the models."""
    cost, draws = setting.cost, setting.stream("table2")
    alone, contended = cold_start_s(cost, 1), cold_start_s(cost, INSTANCES)
    pooled = pooled_start_s(cost)
    warm = cost.model_load_s("pool")
    switches = setting.size(200_000, 100_000)
    rows = [
        Row("cold-none", "cold start of 8, no cache", 2560, contended, "s", How.RUN, _SOURCE, RowKind.DERIVED,
            headline=True),
        Row("cold-local", "cold start of 8, DRAM of each node", 2560, contended, "s", How.RUN, _SOURCE,
            RowKind.DERIVED),
        Row("cold-pool", "cold start of 8, memory pool", 320, pooled, "s", How.RUN, _SOURCE, RowKind.READ_BACK),
        Row("warm", "warm start from memory", 5, warm, "s", How.MODEL, _SOURCE, RowKind.READ_BACK),
    ]  # fmt: skip
    for key, name, room, hit, seconds in (
        ("none", "no cache", 0, 0.0, 320),
        ("local", "DRAM of each node", 1, 0.125, 281),
        ("pool", "memory pool", MODELS, 1.0, 5),
    ):
        hits, mean = switching(cost, room, switches, draws)
        kind = RowKind.DERIVED if room == 1 else RowKind.READ_BACK
        rows += [
            Row(f"hit-{key}", f"hit rate of a switch, {name}", 100 * hit, 100 * hits, "%", How.RUN, _SOURCE,
                RowKind.DERIVED),
            Row(f"switch-{key}", f"mean switch, {name}", seconds, mean, "s", How.RUN, _SOURCE, kind,
                headline=room == 1),
        ]  # fmt: skip
    for key, name, published, ours in (
        ("local", "DRAM of each node", 8, INSTANCES), ("pool", "memory pool", 1, 1),
    ):  # fmt: skip
        rows.append(
            Row(f"dram-{key}", f"DRAM taken, {name}", published, ours, "x model", How.MODEL, _SOURCE, RowKind.READ_BACK)
        )
    note = (
        f"One loader alone takes {alone:.0f} s, from which the bucket's effective 2.1 GB/s follows; eight share it. "
        f"{switches:,} switches were drawn, each model as likely as the others; caches evict the one used longest ago. "
        "The paper calls its figures illustrative."
    )
    return Findings(rows, (note,))


def cold_start_s(cost: CostModel, loaders: int) -> float:
    """Until the last of some instances has read the whole model from one bucket."""
    fabric = Fabric([Link(_BUCKET, Plane.VPC, cost.device.loading.storage_bytes_per_s)])
    for number in range(loaders):
        fabric.start(0.0, TransferId(f"loader-{number}"), (_BUCKET,), int(cost.shape.weight_bytes))
    return _drain(fabric)


def pooled_start_s(cost: CostModel) -> float:
    """The same through the pool: the bucket is read once, and instances follow piece by piece."""
    ways = [LinkId(f"{_POOL} {number}") for number in range(INSTANCES)]
    loading = cost.device.loading
    fabric = Fabric(
        [Link(_BUCKET, Plane.VPC, loading.storage_bytes_per_s)]
        + [Link(way, Plane.UB, loading.pool_bytes_per_s) for way in ways]
    )
    piece = int(cost.shape.weight_bytes / _BLOCKS)
    fabric.start(0.0, TransferId("in-0"), (_BUCKET,), piece)
    now = 0.0
    while (ended := fabric.next_end()) is not None:
        now, name = ended
        fabric.finish(now, name)
        kind, _, number = name.partition("-")
        if kind == "in":
            if int(number) + 1 < _BLOCKS:
                fabric.start(now, TransferId(f"in-{int(number) + 1}"), (_BUCKET,), piece)
            for way in ways:
                fabric.start(now, TransferId(f"out-{number} {way}"), (way,), piece)
    return now


def switching(cost: CostModel, room: int, switches: int, draws: random.Random) -> tuple[float, float]:
    """Switch between models at random, with a cache of `room` models.

    Returns: share of hits, mean time of a switch [s].
    """
    cache: OrderedDict[int, None] = OrderedDict((model, None) for model in range(room))
    warm, cold = cost.model_load_s("pool"), cost.model_load_s("storage")
    hits = 0
    for _ in range(switches):
        model = draws.randrange(MODELS)
        if model in cache:
            hits += 1
            cache.move_to_end(model)
        elif room:
            cache.popitem(last=False)
            cache[model] = None
    return hits / switches, (hits * warm + (switches - hits) * cold) / switches


def _drain(fabric: Fabric) -> float:
    now = 0.0
    while (ended := fabric.next_end()) is not None:
        now = ended[0]
        fabric.finish(*ended)
    return now


EXPERIMENT = Experiment(
    "table2",
    "Model caching: cold start of 8 instances, switching among 8 models",
    "loaders share the object-storage bucket on the simulated fabric; a seeded sequence of switches meets LRU caches",
    run,
    0.4,
    0.2,
)
