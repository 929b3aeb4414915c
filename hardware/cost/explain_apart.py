"""Breakdown of a decode step with attention and experts on different dies: the bottleneck, and the parts that wait
for it.
"""

from hardware.cost.disaggregated import MTP_LAYER_S, SCHEDULING_S, ApartDecodeStep, DisaggregatedStep
from hardware.cost.explain import ATTENTION, EXPERTS, OUTSIDE, attention_parts
from hardware.cost.loads import CostPart, DecodeLoad, PredictedStep
from hardware.units import Seconds

HIDDEN = "experts' turn"


def apart_cost(step: ApartDecodeStep, load: DecodeLoad) -> PredictedStep:
    """Breakdown of one decode step; the parts add up to it."""
    stages = step.iteration(load)
    runs = stages.halves * step.shape.layers
    return PredictedStep(
        total_s=stages.total_s,
        layer_s=Seconds(stages.halves * stages.pace_s),
        streams_s=(stages.attention_s, stages.turn_s),
        cube_split=1.0,
        microbatch=stages.halves > 1,
        parts=(
            *attention_parts(step, load, step.half_batch(load, stages.halves), 1.0, runs),
            *_stage_parts(step, stages, runs),
            *_outside_parts(load, stages),
        ),
    )


def _stage_parts(step: ApartDecodeStep, stages: DisaggregatedStep, runs: int) -> list[CostPart]:
    """Sending, and the wait of attention; the experts' turn, as long as it is hidden, takes no additional time."""
    domains, dies = step.parallelism.domains, step.parallelism.expert_dies
    turn = f"{domains} domains x the longest of: {stages_text(stages)}"
    wait = stages.pace_s - stages.attention_s
    why = f"{HIDDEN} comes every {stages.turn_s * 1e6:,.0f} us: {turn}" if stages.bound == "experts" else _ROUND
    bound = "latency" if stages.bound == "round trip" else "network"
    if stages.bound == "experts" and stages.experts_s >= max(stages.send_s, stages.return_s):
        bound = "compute"
    text = why if wait > 0 else f"hidden: every {stages.turn_s * 1e6:,.0f} us, {turn}"
    return [
        CostPart("send to experts", ATTENTION, Seconds(runs * stages.send_s), runs, "network", f"to {dies} dies"),
        CostPart(f"waiting for {HIDDEN}" if wait > 0 else HIDDEN, EXPERTS, Seconds(runs * wait), runs, bound, text),
    ]


def _outside_parts(load: DecodeLoad, stages: DisaggregatedStep) -> list[CostPart]:
    parts = [("scheduling", SCHEDULING_S, 1, "latency", "as published for xDeepServe")]
    if load.drafts:
        parts.append(("MTP layer", MTP_LAYER_S, load.drafts, "latency", "as published for xDeepServe; not split"))
    if stages.last_s:
        parts += [
            ("last send", stages.send_s, 1, "network", "no other half hides it"),
            ("last experts", stages.experts_s, 1, "compute", "the same"),
            ("last return", stages.return_s, 1, "network", "the same"),
        ]
    return [CostPart(name, OUTSIDE, Seconds(n * one), n, bound, text) for name, one, n, bound, text in parts]


def stages_text(stages: DisaggregatedStep) -> str:
    """Stages of a part of the batch, as text."""
    times = (("send", stages.send_s), ("experts", stages.experts_s), ("return", stages.return_s))
    return ", ".join(f"{name} {seconds * 1e6:,.0f} us" for name, seconds in times)


_ROUND = "a part of the batch is not back yet"
