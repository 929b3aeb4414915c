"""Expected accuracy of the times of a simulation, at its typical steps."""

from collections.abc import Sequence

from hardware.cost import CostModel
from hardware.cost.trust import both_trusts, decode_trust, engine_text_of, prefill_trust
from serving.config.serve import ServeConfig
from serving.virtual.result import ACCURACY, ENGINE, InstanceTotals, RequestColumns, SimulatedPoint
from serving.virtual.work_done import answers_pool, prompts_pool

MIXED = "; steps that do both: nobody has published one, they are derived"


def accuracy(
    cost: CostModel,
    config: ServeConfig,
    rows: RequestColumns,
    points: Sequence[SimulatedPoint],
    instances: Sequence[InstanceTotals],
) -> dict[str, str]:
    """The engine that the times hold for, and their accuracy at the median decode batch and the mean prefill step.

    Reads files of the device and of the engine.
    """
    found = {ENGINE: engine_text_of(cost)}
    batches = sorted(
        point.decode_batch / point.decode_npus for point in points if point.decode_batch * point.decode_npus
    )
    steps = sum(one.steps for one in instances if one.pool != "decode" and one.prompt_tokens)
    if not len(rows) or not batches or not steps:
        return found
    prompts = sum(rows.prompt_tokens)
    context = (prompts + sum(rows.output_tokens) / 2) / len(rows)
    decode = decode_trust(
        cost, float(f"{batches[len(batches) // 2]:.3g}"), round(context), config.simulation.drafts,
        dies=answers_pool(config).dies_per_instance,
    )  # fmt: skip
    dies = prompts_pool(config).dies_per_instance
    chunk = sum(one.prompt_tokens for one in instances if one.pool != "decode") / steps / dies
    if config.serving.mode == "aggregated":  # most steps only decode: a chunk is a prompt, or what a step takes
        chunk = min(config.aggregated.max_step_tokens, sum(rows.prompt_tokens) / len(rows)) / dies
    cached = round(min(0.999, sum(rows.cached_tokens) / max(1, prompts)), 3)
    prefill = prefill_trust(cost, round(chunk), round(prompts / len(rows)), dies=dies, reuse=cached)
    trust = both_trusts(decode, prefill)
    if config.serving.mode == "aggregated":
        trust += MIXED
    return found | {ACCURACY: trust}
