"""Explanation of a candidate's missed SLO: one sentence with figures, from its simulation."""

import math

import numpy as np

from hardware.cost import CostModel
from loadgen.report import numbers
from serving.config.serve import ServeConfig
from serving.tools.planning.bounds import prefill_tokens_per_s
from serving.tools.planning.candidate import DIES_PER_NPU, Candidate
from serving.tools.planning.demand import attended_by_each
from serving.tools.planning.verdict import PlanTarget
from serving.virtual.report.latencies import Flags, Latencies, ints
from serving.virtual.report.pools import pool_summaries
from serving.virtual.result import SimResult, SimulatedPoint

_FULL = 0.95
_FEW_TOKENS = 16


def sentence(
    candidate: Candidate, config: ServeConfig, cost: CostModel, result: SimResult, times: Latencies, target: PlanTarget,
    in_time: Flags, fast: Flags,
) -> str:  # fmt: skip
    """Name the limit that more requests miss, its figures, and the pool's state that explains it.

    Args:
        in_time, fast: requests that kept TTFT, TPOT.
    """
    count = max(1, len(result.requests))
    late = int(np.count_nonzero(~in_time))
    slow = int(np.count_nonzero(~fast & ~np.isnan(times.ttft_s)))
    if not late and not slow:
        return "every request keeps both limits"
    if late >= slow:
        waiting = _prefill_state(candidate, config, cost, result, target)
        alone = _late_by_themselves(candidate, config, cost, result, target, ~in_time)
        return (
            f"TTFT misses {numbers.limit(target.ttft_s)} for {numbers.share(late / count)} of requests (p99 "
            f"{_p99(times.ttft_s)}): {waiting}{_alone(alone, late, candidate)}"
        )
    begun = max(1, int(np.count_nonzero(~np.isnan(times.ttft_s))))
    return (
        f"TPOT misses {numbers.limit(target.tpot_s)} for {numbers.share(slow / begun)} of requests (p99 "
        f"{_p99(times.tpot_s)}): {_decode_state(candidate, result)}{_short_answers(result, times, ~fast, slow)}"
    )


def _prefill_state(
    candidate: Candidate, config: ServeConfig, cost: CostModel, result: SimResult, target: PlanTarget
) -> str:
    """Clause on how often the prefill queue holds more work than can be computed within the TTFT limit."""
    prompt, cached = ints(result.requests.prompt_tokens), ints(result.requests.cached_tokens)
    attended = attended_by_each(prompt - cached, cached)
    rate = (candidate.prefills or candidate.decodes) * prefill_tokens_per_s(cost, config, candidate.prefill, attended)
    points = _under_load(result)
    over = sum(point.prefill_queue_tokens > rate * target.ttft_s for point in points) / max(1, len(points))
    busy = next(one.busy_share for one in pool_summaries(result) if one.name != "decode")
    if over:
        return (
            f"while requests arrived, the prefill queue held more than {numbers.limit(target.ttft_s)} of work "
            f"{numbers.share(over)} of the time, and instances did {numbers.share(busy)} of what they can"
        )
    return f"no long queue, {_who(candidate)} did only {numbers.share(busy)} of what they can"


def _who(candidate: Candidate) -> str:
    return "instances" if candidate.aggregated else "prefill instances"


def _late_by_themselves(
    candidate: Candidate, config: ServeConfig, cost: CostModel, result: SimResult, target: PlanTarget, late: Flags
) -> int:
    """Late requests that would have been late in an idle instance."""
    perfect = config.simulation.expert_balance == "perfect"
    table = cost.prefill_table(dies=candidate.prefill.npus * DIES_PER_NPU, perfect_balance=perfect)
    prompt, cached = ints(result.requests.prompt_tokens)[late], ints(result.requests.cached_tokens)[late]
    new = (prompt - cached).tolist()
    pairs = zip(new, cached.tolist(), strict=True)
    return sum(table.seconds(float(one), one * (seen + one / 2)) > target.ttft_s for one, seen in pairs if one > 0)


def _alone(alone: int, late: int, candidate: Candidate) -> str:
    if not alone:
        return ""
    return f"; {numbers.share(alone / late)} of them are too long for an idle instance of {candidate.prefill.npus} NPUs"


def _decode_state(candidate: Candidate, result: SimResult) -> str:
    """Full caches, full batches or slow steps."""
    points = _under_load(result)
    dies = candidate.decodes * candidate.decode.npus * DIES_PER_NPU
    full = sum(point.decode_kv_share >= _FULL for point in points) / max(1, len(points))
    waiting = sum(point.decode_waiting > 0 for point in points) / max(1, len(points))
    batch = max((point.decode_batch for point in points), default=0) / dies
    step_s = max((point.step_s for point in points), default=0.0)
    facts = [f"up to {batch:.1f} sequences a die, steps of up to {numbers.duration(step_s)}"]
    if full:
        facts.append(f"KV cache full {numbers.share(full)} of the time")
    if waiting:
        facts.append(f"sequences waited for room {numbers.share(waiting)} of the time")
    return ", ".join(facts)


def _short_answers(result: SimResult, times: Latencies, slow: Flags, count: int) -> str:
    """Clause on slow requests with short responses, in which the handoff dominates TPOT; empty if they are few."""
    begun = slow & ~np.isnan(times.ttft_s)
    few = int(np.count_nonzero(begun & times.finished & (ints(result.requests.output_tokens) <= _FEW_TOKENS)))
    if 2 * few < count:
        return ""
    return f"; {numbers.share(few / count)} of them have answers of at most {_FEW_TOKENS} tokens, slowed by the handoff"


def _under_load(result: SimResult) -> list[SimulatedPoint]:
    """Points until the last request arrived: queues that drain afterwards do not count."""
    return [point for point in result.timeline if point.at_s <= result.totals.load_s]


def _p99(values: "np.typing.NDArray[np.float64]") -> str:
    present = values[~np.isnan(values)]
    return numbers.duration(float(np.percentile(present, 99)) if len(present) else math.nan)
