"""Constructed results for the reports: plausible shapes, any size, the same for the same arguments."""

import math
from array import array

import numpy as np

from hardware.cost.loads import CostPart, PredictedStep
from hardware.units import Seconds
from serving.virtual.result import (
    DecisionRecord,
    FaultRecord,
    InstanceTotals,
    Outcome,
    RequestColumns,
    ScaleRecord,
    SimResult,
    SimulatedPoint,
    Totals,
)

GIB = 1 << 30
_WHY = "TTFT p90 1.8 s above 1.5 s for 60 s; queue 310k tokens"


def made_result(
    requests: int = 2000, *, duration_s: float = 3600.0, points: int = 360, faults: bool = True
) -> SimResult:
    """A shortened day's traffic of a small supernode."""
    columns = made_requests(requests, duration_s)
    npu_seconds = duration_s * 256
    return SimResult(
        name="cloudmatrix384",
        workload="conversation <trace> & friends",
        seed=7,
        supernodes=1,
        config={"device": "ascend-910c", "prefill": "6 × 16 NPUs", "decode": "1 × 160 NPUs", "TPOT SLO": "50 ms"},
        requests=columns,
        timeline=made_timeline(points, duration_s),
        timeline_step_s=duration_s / max(1, points),
        decisions=made_decisions(duration_s),
        decision_counts={"route prefill": requests, "route decode": requests, "scale": 6, "preempt": 12, "reject": 3},
        faults=made_faults(duration_s) if faults else [],
        instances=made_instances(duration_s),
        totals=Totals(
            end_s=duration_s,
            prompt_tokens_in=sum(columns.prompt_tokens),
            tokens_computed=sum(columns.prompt_tokens) - sum(columns.cached_tokens),
            tokens_cached=sum(columns.cached_tokens),
            tokens_pulled=sum(columns.pulled_tokens),
            tokens_out=sum(columns.output_tokens),
            tokens_generated=sum(columns.output_tokens) + 99,
            kv_bytes_handed_off=812 * GIB,
            kv_bytes_pulled=340 * GIB,
            kv_bytes_stored=500 * GIB,
            pool_lookups_blocks=10 * requests,
            pool_hits_blocks=4 * requests,
            npu_seconds=npu_seconds,
            events=40 * requests,
            load_s=0.9 * duration_s,
        ),
        wall_s=2.5,
        scaling=made_scaling(duration_s),
    )


def made_scaling(duration_s: float) -> list[ScaleRecord]:
    """Two pools that change their size."""
    return [
        ScaleRecord(0.25 * duration_s, "prefill", 6, 7, "burst", _WHY),
        ScaleRecord(0.5 * duration_s, "decode", 1, 2, "forecast", "load 1.2 at 70 % needs 2"),
        ScaleRecord(0.75 * duration_s, "prefill", 7, 5, "yield", "decode <comes> first"),
    ]


def made_requests(count: int, duration_s: float, seed: int = 3) -> RequestColumns:
    """Log-normal latencies; a few requests rejected, failed, unfinished, or of one token."""
    rng = np.random.default_rng(seed)
    arrival = np.sort(rng.uniform(0, 0.96 * duration_s, count))
    ttft = rng.lognormal(-0.7, 0.8, count)
    output = 1 + rng.geometric(1 / 300, count) * (rng.random(count) > 0.02)
    prompt = rng.geometric(1 / 6000, count)
    finish = arrival + ttft + (output - 1) * rng.lognormal(-3.3, 0.25, count)
    outcome = rng.choice([0, 1, 2, 3], count, p=[0.97, 0.01, 0.01, 0.01])
    outcome = np.where((outcome == 0) & (finish > duration_s), Outcome.UNFINISHED, outcome)
    finish = np.where(outcome == Outcome.FINISHED, finish, math.nan)
    first = np.where(outcome == Outcome.REJECTED, math.nan, arrival + ttft)
    cached = (prompt * rng.uniform(0, 0.9, count)).astype(np.int64)
    whole = dict.fromkeys(("prompt_tokens", "output_tokens", "cached_tokens", "pulled_tokens", "attempts"))
    values = (prompt, output, cached, cached // 2, 1 + (outcome == Outcome.FAILED))
    return RequestColumns(
        arrival_s=array("d", arrival.tolist()),
        first_token_s=array("d", first.tolist()),
        finish_s=array("d", finish.tolist()),
        outcome=array("b", outcome.tolist()),
        queue_s=array("d", (0.3 * (first - arrival)).tolist()),
        adopted_s=array("d", np.where(output > 1, first + 0.01, math.nan).tolist()),
        **{name: array("q", column.tolist()) for name, column in zip(whole, values, strict=True)},
    )


def made_timeline(points: int, duration_s: float) -> list[SimulatedPoint]:
    """Waves, with a decode instance that comes up in the middle."""
    rng = np.random.default_rng(5)
    found = []
    for n in range(points):
        at = duration_s * n / max(1, points - 1)
        wave = 0.5 + 0.4 * math.sin(n / max(1, points) * 14) + 0.1 * float(rng.random())
        late = n > points / 2
        found.append(
            SimulatedPoint(
                at_s=at,
                prefill_queue_tokens=int(400_000 * wave**3),
                prefill_waiting=int(20 * wave**2),
                decode_waiting=int(90 * max(0.0, wave - 0.7)),
                decode_batch=int(6000 * wave),
                prefill_kv_share=0.3 * wave,
                decode_kv_share=0.9 * wave,
                pool_share=min(0.95, n / max(1, points) * 1.6),
                prefill_npus=112 if late else 96,
                decode_npus=160,
                starting_npus=16 if not late and n > points / 2.2 else 0,
                idle_npus=112 if late else 128,
                ub_bytes=int(at * 1e9),
                rdma_bytes=int(at * 3e8),
                vpc_bytes=int(at * 1e7),
                ub_share=0.08 * wave,
                rdma_share=0.22 * wave,
                vpc_share=0.01 * wave,
                step_s=0.03 + 0.02 * wave,
            )
        )
    return found


def made_decisions(duration_s: float) -> list[DecisionRecord]:
    """Some of each kind."""
    found = [
        DecisionRecord(
            duration_s * n / 60, "route prefill", f"r{n}", f"prefill-{n % 6}", f"least uncached tokens: {900 * n}"
        )
        for n in range(50)
    ]
    found += [
        DecisionRecord(duration_s * n / 7, "scale", "prefill", f"{6 + n} instances", _WHY)
        for n in range(1, 7)
    ]  # fmt: skip
    return sorted(found, key=lambda one: one.at_s)


def made_faults(duration_s: float) -> list[FaultRecord]:
    """One of a few kinds."""
    return [
        FaultRecord(0.2 * duration_s, "die", "decode-0/die-17", 0.2 * duration_s + 41, 310, 1_240_000, 6560.0),
        FaultRecord(0.55 * duration_s, "straggler", "prefill-2", 0.6 * duration_s, 12, 0, 80.0),
        FaultRecord(0.8 * duration_s, "node", "node-3", math.nan, 4, 52_000, 5760.0),
    ]


def made_instances(duration_s: float) -> list[InstanceTotals]:
    """Six prefill instances and one more later; one decode instance."""
    prefill = [
        InstanceTotals(
            f"prefill-{n}",
            "prefill",
            16,
            0.0,
            math.nan,
            9000,
            0.6 * duration_s,
            9_000_000,
            2000,
            0,
            12,
            0.4,
            load_s=0.9 * duration_s,
            load_busy_s=0.54 * duration_s,
            work_s=0.36 * duration_s,
        )
        for n in range(6)
    ]
    late = InstanceTotals(
        "prefill-6", "prefill", 16, duration_s / 2, math.nan, 4000, 0.2 * duration_s, 3_000_000, 900, 0, 9, 0.3,
        load_s=0.4 * duration_s, load_busy_s=0.2 * duration_s, work_s=0.1 * duration_s,
    )  # fmt: skip
    decode = InstanceTotals(
        "decode-0", "decode", 160, 0.0, math.nan, 70_000, 0.93 * duration_s, 0, 600_000, 12, 6000, 0.93,
        load_s=0.9 * duration_s, load_busy_s=0.9 * duration_s, work_s=0.45 * duration_s,
    )  # fmt: skip
    return [*prefill, late, decode]


def made_step(*, microbatch: bool = True) -> PredictedStep:
    """A decode step near the published one."""
    runs = 58 * (2 if microbatch else 1)
    attention = (("MLA prolog", 60.0), ("core attention", 344.0), ("output projection", 115.0), ("vector", 97.0))
    experts = (
        ("dispatch", 84.0), ("gate", 12.0), ("routed experts", 234.0), ("shared expert", 40.0), ("combine", 110.0),
        ("straggler wait", 139.0),
    )  # fmt: skip
    parts = [
        CostPart(name, stream, Seconds(microseconds * 1e-6 * runs), runs, "memory", f"{microseconds} us × {runs}")
        for stream, operators in enumerate((attention, experts))
        for name, microseconds in operators
    ]
    parts.append(CostPart("dense layers", 0, Seconds(0.001), 3, "compute", "3 layers without experts"))
    parts.append(CostPart("LM head", -1, Seconds(0.002), 1, "memory", "once"))
    first, second = (Seconds(sum(one for _, one in operators) * 1e-6) for operators in (attention, experts))
    layer_s = Seconds(2 * max(first, second) if microbatch else first + second)
    split = 2 / 3 if microbatch else 1.0
    return PredictedStep(Seconds(58 * layer_s + 0.003), layer_s, (first, second), split, microbatch, tuple(parts))
