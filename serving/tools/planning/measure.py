"""One candidate, simulated: its configuration, the useful duration of the run, and the verdict."""

from dataclasses import dataclass, replace

import numpy as np

from hardware.cost import CostModel
from hardware.cost.parallelism import domains_of
from hardware.faults import Fault
from loadgen.report import numbers
from serving.config.engine import ServingConfig
from serving.config.serve import ServeConfig
from serving.tools.planning.candidate import DIES_PER_NPU, Candidate, Shape
from serving.tools.planning.loss import WINDOW_S, with_spares
from serving.tools.planning.loss import faults as lost
from serving.tools.planning.reach import TargetReach, kept, of_decided
from serving.tools.planning.trace import TraceChoice, opened
from serving.tools.planning.verdict import PlanProbe, PlanTarget, PlanVerdict
from serving.tools.planning.why import sentence
from serving.virtual.report.latencies import Flags, floats, ints, latencies
from serving.virtual.report.summary import summarize
from serving.virtual.result import SimResult
from serving.virtual.run import cost_model, simulate


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
    config = replace(
        config,
        kvcache=replace(config.kvcache, replicas=servers if config.kvcache.replicas else 0),
        autoscaler=replace(config.autoscaler, policy="none"),
        simulation=replace(
            config.simulation, decode_attention_tp=candidate.decode.attention_tp,
            expert_dies=candidate.decode.expert_dies, domains=_domains(config, candidate.decode),
            redundant_experts=candidate.decode.redundant,
        ),
        slo=slo,
    )  # fmt: skip
    if candidate.aggregated:
        return _aggregated(config, candidate)
    return replace(
        config,
        prefill=replace(
            config.prefill, replicas=candidate.prefills, npus_per_instance=candidate.prefill.npus,
            max_step_tokens=candidate.prefill.limit * candidate.prefill.npus,
        ),
        decode=replace(
            config.decode, replicas=candidate.decodes, npus_per_instance=candidate.decode.npus,
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
    summary = summarize(result, times=times)
    in_time, fast = kept(times, target)
    begun = int(np.count_nonzero(~np.isnan(times.ttft_s)))
    count = max(1, len(result.requests))
    pools = {pool.name: pool for pool in summary.pools}
    both = pools.get("aggregated")
    prompts, answers = both or pools["prefill"], both or pools["decode"]
    decodes = [one for one in result.instances if one.pool == answers.name]
    good = int(np.count_nonzero(in_time & fast))
    return PlanVerdict(
        attainment=good / count,
        ttft_attainment=int(np.count_nonzero(in_time)) / count,
        tpot_attainment=int(np.count_nonzero(fast)) / max(1, begun),
        goodput_per_s=good / max(_asked_s(result, closed=closed, last_s=facts.last_s), 1e-9),
        ttft_p99_s=summary.ttft_s.p99,
        tpot_p99_s=summary.tpot_s.p99,
        hit_share=summary.cache.hit_share,
        pool_share=max((point.pool_share for point in result.timeline), default=0.0),
        prefill_busy=prompts.busy_share,
        decode_busy=answers.busy_share,
        batch=max((one.peak_batch for one in decodes), default=0) / (probe.candidate.decode.npus * DIES_PER_NPU),
        why=sentence(probe.candidate, config, cost, result, times, target, in_time, fast) + _until(stopped_s),
        events=result.totals.events,
        prefill_running=prompts.running_share,
        decode_running=answers.running_share,
        worst_attainment=_in_window(result, in_time & fast, facts.worst_s),
        pace_attainment=int(np.count_nonzero(fast)) / max(1, int(np.count_nonzero(times.finished))),
        prompt_tokens=int(ints(result.requests.prompt_tokens)[in_time & fast].sum()),
        output_tokens=int(ints(result.requests.output_tokens)[in_time & fast].sum()),
        load_s=result.totals.load_s,
        hit=sum(fault.sequences_hit for fault in result.faults),
        stopped_s=stopped_s,
    )


def _until(stopped_s: float | None) -> str:
    return "" if stopped_s is None else f"; out of reach after {numbers.clock(stopped_s)}, where the run was ended"


def _asked_s(result: SimResult, *, closed: bool, last_s: float) -> float:
    """Time in which requests arrived [s]; of a run that was stopped, until then."""
    return result.totals.load_s if closed else min(last_s, result.totals.end_s)


def _in_window(result: SimResult, good: Flags, begins_s: float) -> float:
    """Share of good requests among those that arrived in the ten minutes from a moment on."""
    arrived = floats(result.requests.arrival_s)
    inside = (arrived >= begins_s) & (arrived < begins_s + WINDOW_S)
    return int(np.count_nonzero(good[inside])) / max(1, int(np.count_nonzero(inside)))
