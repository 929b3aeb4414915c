"""One candidate, simulated: its configuration, the useful duration of the run, and the verdict."""

import math
from dataclasses import dataclass, fields, replace

import numpy as np

from hardware.cost import CostModel
from hardware.cost.parallelism import domains_of
from hardware.faults import Fault
from loadgen.report import numbers
from serving.config.engine import ServingConfig
from serving.config.serve import ServeConfig
from serving.tools.planning.bounds import prefill_tokens_per_s
from serving.tools.planning.candidate import DIES_PER_NPU, Candidate, Shape
from serving.tools.planning.trace import TraceChoice, attended_by_each, opened
from serving.tools.planning.verdict import WINDOW_S, PlanProbe, PlanTarget, PlanVerdict, with_spares
from serving.tools.planning.verdict import faults as lost
from serving.virtual.report.latencies import Flags, Latencies, distribution, floats, ints, latencies
from serving.virtual.report.pools import pool_summaries, ratio
from serving.virtual.result import Outcome, RequestColumns, SimResult, SimulatedPoint
from serving.virtual.simulation import cost_model, simulate


@dataclass(frozen=True, slots=True)
class PlanSetting:
    """Setting that all simulations of one plan share.

    Attributes:
        stretch: the short trace. cache_nodes: memory servers; None = one on each node that the candidate fills.
        as_given: pools are the configuration's own; only the limits are replaced.
    """

    config: ServeConfig
    trace: TraceChoice
    stretch: TraceChoice
    target: PlanTarget
    cache_nodes: int | None = None
    as_given: bool = False


def configured(setting: PlanSetting, candidate: Candidate) -> ServeConfig:
    """The configuration with a candidate's pools. Other keys are unchanged; pools stay as large as they start."""
    config = setting.config
    slo = replace(config.slo, ttft_s=setting.target.ttft_s, tpot_s=setting.target.tpot_s)
    if setting.as_given:
        return replace(config, slo=slo)
    dies = candidate.decode.npus * DIES_PER_NPU
    servers = candidate.nodes if setting.cache_nodes is None else setting.cache_nodes
    drafted = 1 + config.simulation.drafts
    drawn, copies = bool(config.simulation.routing), candidate.decode.redundant
    if drawn and copies >= 0:
        config = replace(config, experts=replace(config.experts, redundant=copies))
    config = replace(
        config,
        kvcache=replace(config.kvcache, replicas=servers if config.kvcache.replicas else 0),
        autoscaler=replace(config.autoscaler, policy="none"),
        simulation=replace(
            config.simulation, decode_attention_tp=candidate.decode.attention_tp,
            expert_dies=candidate.decode.expert_dies, domains=_domains(config, candidate.decode),
            redundant_experts=-1 if drawn else copies,
        ),
        slo=slo,
    )  # fmt: skip
    if candidate.one_pool:
        return _aggregated(config, candidate)
    return replace(
        config,
        prefill=replace(
            config.prefill, replicas=candidate.prefills, npus_per_instance=candidate.prefill.npus,
            max_step_tokens=candidate.prefill.limit * candidate.prefill.npus,
        ),
        decode=replace(
            config.decode.as_one_process(), replicas=candidate.decodes, npus_per_instance=candidate.decode.npus,
            max_sequences=candidate.decode.limit * dies,
            max_step_tokens=max(candidate.decode.limit * drafted, decode_step_tokens(config)) * dies,
        ),
    )  # fmt: skip


def _aggregated(config: ServeConfig, candidate: Candidate) -> ServeConfig:
    """The configuration with one pool that does both; the two pools' own keys, without effect in this mode, are
    removed.

    As many wait as wait for prefill or for decode. A die's cache is as large as a decode die's, and an instance's no
    smaller than a prefill instance's.
    """
    usual, decode, npus = ServeConfig(config.model), config.decode, candidate.decode.npus
    memory = max(config.prefill.ub_memory_mib, round(decode.ub_memory_mib * npus / decode.npus_per_instance))
    return replace(
        config,
        serving=ServingConfig(mode="aggregated"),
        engine=replace(
            config.engine, handoff_lease_s=usual.engine.handoff_lease_s, empty_role_s=usual.engine.empty_role_s
        ),
        prefill=usual.prefill,
        decode=usual.decode,
        aggregated=replace(
            config.aggregated, replicas=candidate.decodes, npus_per_instance=npus, ub_memory_mib=memory,
            max_step_tokens=candidate.prefill.limit * npus, max_sequences=candidate.decode.limit * npus * DIES_PER_NPU,
            max_waiting=max(config.prefill.max_waiting, decode.max_waiting),
        ),
    )  # fmt: skip


def _domains(config: ServeConfig, shape: Shape) -> int:
    """Domains of a decode instance's attention dies: as configured where dies of experts leave so many equal ones."""
    wanted = config.simulation.domains
    return domains_of(shape.npus * DIES_PER_NPU, shape.expert_dies, wanted) if shape.expert_dies else wanted


def decode_step_tokens(config: ServeConfig) -> int:
    """Token limit of a step of one decode die, as configured."""
    return max(1, config.decode.max_step_tokens // config.decode.dies_per_instance)


def measure(setting: PlanSetting, probe: PlanProbe) -> PlanVerdict:
    """Simulate one candidate.

    The run ends when the last request could still have kept its limits: requests in flight by then have missed them. A
    closed loop is played to its end. A probe that may stop ends as soon as the target is out of reach.

    Raises: ConfigError for a topology that cannot be, TraceError for a trace that cannot be read.
    """
    target = setting.target
    trace = (setting.trace if probe.whole else setting.stretch).faster(probe.rate)
    workload, facts = opened(trace)
    config = configured(setting, probe.candidate)
    faults: tuple[Fault, ...] = ()
    if probe.loss is not None:
        config = with_spares(config, probe.loss, probe.candidate)
        faults = lost(probe.loss, probe.candidate, facts.worst_s)
    closed = trace.concurrency is not None
    stop_s = None if closed else facts.last_s + target.ttft_s + facts.longest_output * target.tpot_s
    reach = TargetReach(target, facts.requests) if probe.may_stop else None
    result = simulate(config, workload, stop_s=stop_s, enough=reach, faults=faults)
    stopped_s = None
    if reach is not None and reach.lost:
        stopped_s, result = result.totals.end_s, of_decided(result, target)
    cost: CostModel = cost_model(config)
    times = latencies(result.requests)
    in_time, fast = kept(times, target)
    pools = {pool.name: pool for pool in pool_summaries(result)}
    both = pools.get("aggregated")
    prompts, answers = both or pools["prefill"], both or pools["decode"]
    decodes = [one for one in result.instances if one.pool == answers.name]
    batch = max((one.peak_batch for one in decodes), default=0) / (probe.candidate.decode.npus * DIES_PER_NPU)
    asked_s = _asked_s(result, closed=closed, last_s=facts.last_s)
    return replace(
        judged(target, result.requests, asked_s=asked_s, worst_s=facts.worst_s, batch=batch),
        pool_share=max((point.pool_share for point in result.timeline), default=0.0),
        prefill_busy=prompts.busy_share,
        decode_busy=answers.busy_share,
        why=sentence(probe.candidate, config, cost, result, times, target, in_time, fast) + _until(stopped_s),
        events=result.totals.events,
        prefill_running=prompts.running_share,
        decode_running=answers.running_share,
        load_s=result.totals.load_s,
        hit=sum(fault.sequences_hit for fault in result.faults),
        stopped_s=stopped_s,
    )


def judged(
    target: PlanTarget, requests: RequestColumns, *, asked_s: float, worst_s: float, batch: float
) -> PlanVerdict:
    """Judge requests' times by a target; of screening and of simulations alike.

    Args:
        asked_s: time in which they arrived [s]. worst_s: as in `TraceFacts`. batch: as in `PlanVerdict`.
    Returns: without what only a simulation knows: shares of pools, instances' work, the reason.
    """
    times = latencies(requests)
    in_time, fast = kept(times, target)
    begun, count = ~np.isnan(times.ttft_s), max(1, len(requests))
    prompt = ints(requests.prompt_tokens)
    good = int(np.count_nonzero(in_time & fast))
    late, slow = count - int(np.count_nonzero(in_time)), int(np.count_nonzero(begun & ~fast))
    ttft_p99_s, tpot_p99_s = distribution(times.ttft_s).p99, distribution(times.tpot_s).p99
    return PlanVerdict(
        attainment=good / count,
        ttft_attainment=int(np.count_nonzero(in_time)) / count,
        tpot_attainment=int(np.count_nonzero(fast)) / max(1, int(np.count_nonzero(begun))),
        goodput_per_s=good / max(asked_s, 1e-9),
        ttft_p99_s=ttft_p99_s,
        tpot_p99_s=tpot_p99_s,
        hit_share=ratio(int(ints(requests.cached_tokens)[begun].sum()), int(prompt[begun].sum())),
        pool_share=math.nan,
        prefill_busy=math.nan,
        decode_busy=math.nan,
        batch=batch,
        why=f"screened: {numbers.share(late / count)} of requests miss TTFT, {numbers.share(slow / count)} TPOT",
        worst_attainment=_in_window(requests, in_time & fast, worst_s),
        pace_attainment=int(np.count_nonzero(fast)) / max(1, int(np.count_nonzero(times.finished))),
        prompt_tokens=int(prompt[in_time & fast].sum()),
        output_tokens=int(ints(requests.output_tokens)[in_time & fast].sum()),
    )


def _until(stopped_s: float | None) -> str:
    return "" if stopped_s is None else f"; out of reach after {numbers.clock(stopped_s)}, where the run was ended"


def _asked_s(result: SimResult, *, closed: bool, last_s: float) -> float:
    """Time in which requests arrived [s]; of a run that was stopped, until then."""
    return result.totals.load_s if closed else min(last_s, result.totals.end_s)


def _in_window(requests: RequestColumns, good: Flags, begins_s: float) -> float:
    """Share of good requests among those that arrived in the ten minutes from a moment on."""
    arrived = floats(requests.arrival_s)
    inside = (arrived >= begins_s) & (arrived < begins_s + WINDOW_S)
    return int(np.count_nonzero(good[inside])) / max(1, int(np.count_nonzero(inside)))


# Detects during a run whether the target is still reachable: one that cannot need not be simulated to its end.

_ROUNDING = 1e-6


def misses_allowed(target: PlanTarget, requests: int) -> float:
    """Requests of so many that may miss a limit."""
    return (1 - target.attainment) * requests + _ROUNDING


class TargetReach:
    """Called periodically by a simulation; see `simulate`'s `enough`.

    One pool alone must have missed too much: of what both miss together, no floor of either pool would follow.

    Args:
        requests: of the whole trace.
    Attributes:
        lost: whether more requests missed one limit than the target allows, so that it is out of reach.
    """

    def __init__(self, target: PlanTarget, requests: int) -> None:
        self.lost = False
        self._target = target
        self._allowed = misses_allowed(target, requests)

    def __call__(self, now: float, requests: RequestColumns) -> bool:
        """Whether the target is out of reach at a moment [s]. Effects: remembers that."""
        if requests:
            slow = int(np.count_nonzero(latencies(requests).tpot_s > self._target.tpot_s))
            late = int(np.count_nonzero(_late(requests, self._target, now)))
            self.lost = max(slow, late) > self._allowed
        return self.lost


def kept(times: Latencies, target: PlanTarget) -> tuple[Flags, Flags]:
    """Which requests kept TTFT, and which finished within TPOT."""
    in_time = times.ttft_s <= target.ttft_s
    return in_time, times.finished & (np.isnan(times.tpot_s) | (times.tpot_s <= target.tpot_s))


def of_decided(result: SimResult, target: PlanTarget) -> SimResult:
    """A stopped run, with only the requests that had finished by then or were already late."""
    requests = result.requests
    ended = np.frombuffer(requests.outcome, dtype=np.int8) != Outcome.UNFINISHED
    rows = np.flatnonzero(ended | _late(requests, target, result.totals.end_s)).tolist()
    columns = {one.name: getattr(requests, one.name) for one in fields(requests)}
    chosen = {name: type(column)(column.typecode, (column[row] for row in rows)) for name, column in columns.items()}
    return replace(result, requests=RequestColumns(**chosen))


def _late(requests: RequestColumns, target: PlanTarget, now: float) -> Flags:
    first = floats(requests.first_token_s)
    waited = np.where(np.isnan(first), now, first) - floats(requests.arrival_s)
    return waited > target.ttft_s


# Explanation of a candidate's missed SLO: one sentence with figures, from its simulation.

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
    return "instances" if candidate.one_pool else "prefill instances"


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
