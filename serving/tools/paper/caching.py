"""Figure 23 and Table 2: prompts from the KV-cache pool, and model images from it."""

import random
from collections import OrderedDict

from hardware.cost import CostModel
from hardware.cost.published import RowKind
from hardware.cost.transfers import TCP_SHARE, PoolPlane, pool_rate
from hardware.fabric import Fabric, Link, LinkId, TransferId
from hardware.spec.plane import Plane
from serving.config.simulation import SimulationConfig
from serving.tools.paper.experiment import Curve, Experiment, Findings, How, Plot, Row, Setting
from serving.tools.paper.prefill_bench import BLOCK_TOKENS, PrefillCase, PrefillMeasure, measure_prefill

# Figure 23: prompts of which a part is in the KV-cache pool, loaded over UB or over the datacentre network.

_SOURCE = "CloudMatrix-Infer 5.4.3, Figure 23"
_PROMPT = 4096
_ROOM = 3
"""Batches: one that computes, one that is handed on, one that loads."""
_SHARES = (0.0, 0.125, 0.25, 0.5, 0.75, 0.9)


def plan_rate(cost: CostModel, plane: PoolPlane) -> float:
    """Rate at which `plan` and `simulate` let one NPU load cached blocks over a plane [GB/s]."""
    return SimulationConfig().pool_gb_per_s or pool_rate(cost.device, plane) / 1e9


def run_figure_23(setting: Setting) -> Findings:
    """The same full steps at every share of reuse, over both planes at the rates of `plan` and at line rate."""
    device = setting.cost.device
    per_npu = device.die.per_npu
    rate, slower = (plan_rate(setting.cost, plane) for plane in ("ub", "vpc"))
    ub, vpc = (line * per_npu / 1e9 for line in (device.links.pool_read_bytes_per_s, device.links.vpc_bytes_per_s))
    ems = [_measure(setting, share, rate) for share in _SHARES]
    over_vpc = [_measure(setting, share, slower) for share in _SHARES]
    raw_ub = [_measure(setting, share, ub) for share in _SHARES]
    raw_vpc = [_measure(setting, share, vpc) for share in _SHARES]
    hidden = _measure(setting, 0.9, rate, overlap=True)
    default = measure_prefill(setting.cost, PrefillCase(prompt=_PROMPT, imbalance=None, batches=1))
    room = setting.cost.hbm_plan("prefill", 32).instance_kv_tokens
    none, eighth, half, most = ems[0], ems[1], ems[3], ems[5]
    planes, raw_planes = (
        max(_over(a, b) for a, b in zip(one, other, strict=True)) for one, other in ((ems, over_vpc), (raw_ub, raw_vpc))
    )
    rows = (
        _row("ttft-none", "TTFT, no reuse", 2.54, none.ttft_s, "s", headline=True),
        _row("ttft-half", "TTFT, 50 % reuse", 1.67, half.ttft_s, "s", headline=True),
        _row("ttft-most", "TTFT, 90 % reuse", 1.046, most.ttft_s, "s", headline=True),
        _row("cut-half", "TTFT saved by 50 % reuse", 0.861, none.ttft_s - half.ttft_s, "s"),
        _row("cut-most", "TTFT saved by 90 % reuse", 1.505, none.ttft_s - most.ttft_s, "s"),
        _row("gain-half", "throughput, 50 % over 12.5 % reuse", 1.42, _over(half, eighth), "x", headline=True),
        _row("gain-most", "throughput, 90 % over no reuse", 2.28, _over(most, none), "x", headline=True),
        Row("planes", "throughput, UB over VPC, largest", 1.52, planes, "x", How.RUN, _SOURCE, RowKind.FITTED),
    )
    notes = _notes(rate, ub, vpc, slower, raw_planes, _over(hidden, none), room, default.ttft_s)
    percent = [100 * share for share in _SHARES]
    plots = (
        Plot(
            "TTFT of a full batch of 4K prompts", "% of each prompt in the pool", "s",
            (
                Curve("as `plan` loads, UB", percent, [found.ttft_s for found in ems]),
                Curve("as `plan` loads, VPC", percent, [found.ttft_s for found in over_vpc]),
                Curve("UB, measured rate", percent, [found.ttft_s for found in raw_ub]),
                Curve("VPC, line rate", percent, [found.ttft_s for found in raw_vpc]),
                Curve("published", (0, 50, 90), (2.54, 1.67, 1.046), published=True),
            ),
        ),
        Plot(
            "prompt throughput, cached tokens included", "% of each prompt in the pool", "tok/s per NPU",
            (
                Curve("as `plan` loads, UB", percent, [found.tokens_per_s for found in ems]),
                Curve("as `plan` loads, VPC", percent, [found.tokens_per_s for found in over_vpc]),
                Curve("UB, measured rate", percent, [found.tokens_per_s for found in raw_ub]),
                Curve("VPC, line rate", percent, [found.tokens_per_s for found in raw_vpc]),
            ),
        ),
    )  # fmt: skip
    return Findings(rows, notes, plots)


def _notes(
    rate: float,
    ub: float,
    vpc: float,
    slower: float,
    raw_planes: float,
    hidden_gain: float,
    room: int,
    default_s: float,
) -> tuple[str, ...]:
    """Notes on the figure."""
    return (
        f"Loads at {rate:.2g} GB/s per NPU, as `plan` and `simulate` have them, are fitted to the published TTFT; UB "
        f"was measured to carry {ub:.0f}. What slows them is not published. Over VPC blocks first arrive in the host's "
        f"memory, at the {100 * TCP_SHARE:.0f} % of the card's rate that TCP reached elsewhere: {slower:.2g} GB/s in "
        f"all. The "
        "share is not of this row, but that both ways add up was chosen in view of it. At line rates, UB over VPC's "
        f"{vpc:.2f} would be {raw_planes:.2f}.",
        "Throughput is of one full batch after the other. Our engine can load the next batch while one computes, if it "
        f"has room for {_ROOM} of them: 90 % reuse would then give {hidden_gain:.1f} times the throughput. By "
        f"our memory plan an instance has room for {room:,} tokens, one batch.",
        "Experts are ideally balanced, closer to the published TTFT without reuse; with the default balance it "
        f"is {default_s:.2f} s.",
        f"Blocks of {BLOCK_TOKENS} tokens: 90 % are 29 of a prompt's 32 blocks, 90.6 %.",
    )


def _row(key: str, label: str, published: float, ours: float, unit: str, *, headline: bool = False) -> Row:
    return Row(key, label, published, ours, unit, How.RUN, _SOURCE, RowKind.FITTED, headline=headline)


def _measure(setting: Setting, share: float, gb_per_s: float, *, overlap: bool = False) -> PrefillMeasure:
    blocks = round(share * _PROMPT / BLOCK_TOKENS)
    return measure_prefill(
        setting.cost,
        PrefillCase(
            prompt=_PROMPT,
            cached_blocks=blocks,
            gb_per_s=gb_per_s,
            overlap=overlap,
            batches=12 if overlap else setting.size(3, 1),
            room_batches=_ROOM if overlap else 2,
        ),
    )


def _over(one: PrefillMeasure, other: PrefillMeasure) -> float:
    return one.tokens_per_s / other.tokens_per_s


FIGURE_23 = Experiment(
    "fig23",
    "Context caching",
    "a live prefill engine and the live pool's ledgers in virtual time: the pool has each prompt's first blocks, and "
    "loads share the instance's link to it",
    run_figure_23,
    2.2,
    1.1,
)


# Table 2: eight instances that load a model at once, and that switch between eight models at random.

_TABLE_2_SOURCE = "CloudMatrix-Infer, Table 2"
INSTANCES = 8
MODELS = 8
_BLOCKS = 671
"""The model moves into the pool in so many pieces, and on to the instances piece by piece."""
_BUCKET, _POOL = LinkId("bucket"), "pool to instance"


def run_table_2(setting: Setting) -> Findings:
    """Cold start with and without the pool, then random switching with room for none, one, and all of the models."""
    cost, draws = setting.cost, setting.stream("table2")
    alone, contended = cold_start_s(cost, 1), cold_start_s(cost, INSTANCES)
    pooled = pooled_start_s(cost)
    warm = cost.model_load_s("pool")
    switches = setting.size(200_000, 100_000)
    rows = [
        Row("cold-none", "cold start of 8, no cache", 2560, contended, "s", How.RUN, _TABLE_2_SOURCE, RowKind.DERIVED,
            headline=True),
        Row("cold-local", "cold start of 8, DRAM of each node", 2560, contended, "s", How.RUN, _TABLE_2_SOURCE,
            RowKind.DERIVED),
        Row("cold-pool", "cold start of 8, memory pool", 320, pooled, "s", How.RUN, _TABLE_2_SOURCE, RowKind.READ_BACK),
        Row("warm", "warm start from memory", 5, warm, "s", How.MODEL, _TABLE_2_SOURCE, RowKind.READ_BACK),
    ]  # fmt: skip
    for key, name, room, hit, seconds in (
        ("none", "no cache", 0, 0.0, 320),
        ("local", "DRAM of each node", 1, 0.125, 281),
        ("pool", "memory pool", MODELS, 1.0, 5),
    ):
        hits, mean = switching(cost, room, switches, draws)
        kind = RowKind.DERIVED if room == 1 else RowKind.READ_BACK
        rows += [
            Row(f"hit-{key}", f"hit rate of a switch, {name}", 100 * hit, 100 * hits, "%", How.RUN, _TABLE_2_SOURCE,
                RowKind.DERIVED),
            Row(f"switch-{key}", f"mean switch, {name}", seconds, mean, "s", How.RUN, _TABLE_2_SOURCE, kind,
                headline=room == 1),
        ]  # fmt: skip
    for key, name, published, ours in (
        ("local", "DRAM of each node", 8, INSTANCES), ("pool", "memory pool", 1, 1),
    ):  # fmt: skip
        rows.append(
            Row(
                f"dram-{key}",
                f"DRAM taken, {name}",
                published,
                ours,
                "x model",
                How.MODEL,
                _TABLE_2_SOURCE,
                RowKind.READ_BACK,
            )
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


TABLE_2 = Experiment(
    "table2",
    "Model caching: cold start of 8 instances, switching among 8 models",
    "loaders share the object-storage bucket on the simulated fabric; a seeded sequence of switches meets LRU caches",
    run_table_2,
    0.4,
    0.2,
)
