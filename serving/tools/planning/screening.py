"""Screening: one candidate by queues over step times of the cost model, in a small part of a simulation's time.

    arrivals ── prefill: a queue of prompts per instance ── handoff ── decode: dies in lockstep ── finish

Step times come from `TableTimes`, drafts from `rate_of`, dies from `DpBalance`, and `judged` counts the SLOs: the code
of the simulation itself. There are no gateways, engines, KV blocks and links, so these effects are missing: reports of
load that are late, contention of transfers, preemption, evictions while a block is leased. The KV-cache pool is an LRU
list of the trace's block ids. So a plan's answer comes from simulations; screening selects what they confirm.
"""

import math
from array import array
from dataclasses import replace

from hardware.cost import CostModel
from hardware.cost.parallelism import Parallelism
from serving.config.serve import ServeConfig
from serving.config.simulated_cost import divisions
from serving.ids import ReplicaId
from serving.instance.core.placeholder import mix64, rate_of, steps_for
from serving.tools.planning import feasible
from serving.tools.planning.bounds import SearchLimits
from serving.tools.planning.candidate import Candidate, Shape
from serving.tools.planning.candidate_run import PlanSetting, configured, judged, misses_allowed
from serving.tools.planning.knowledge import Knowledge
from serving.tools.planning.npu_search import find_least
from serving.tools.planning.screening_queues import DecodeLockstep, PrefillQueue, ScreeningTimes, prefix_hits
from serving.tools.planning.trace import TraceChoice, demand, opened
from serving.tools.planning.verdict import PlanProbe, PlanVerdict
from serving.virtual.result import Outcome, RequestColumns
from serving.virtual.simulation import cost_model
from serving.virtual.times import Slowdown, TableTimes
from serving.virtual.workload.columns import TraceRequest


class Screen:
    """Screens candidates of one plan; what several of them share is computed once.

    Args:
        setting: open loops without drawn loads of experts only; see `can_screen`.
    """

    def __init__(self, setting: PlanSetting) -> None:
        self._setting = setting
        self._requests: dict[TraceChoice, list[TraceRequest]] = {}
        self._hits: dict[tuple[TraceChoice, int], list[int]] = {}
        self._distinct: dict[TraceChoice, int] = {}
        self._drafts: dict[TraceChoice, list[tuple[int, float]]] = {}
        self._costs: dict[tuple[Parallelism, Parallelism], CostModel] = {}
        self._times: dict[tuple[Parallelism, Parallelism, int, int], ScreeningTimes] = {}
        self._prompts: dict[tuple[TraceChoice, Shape, int, int, int], array[float]] = {}

    def __call__(self, probe: PlanProbe) -> PlanVerdict:
        """Screen a candidate of two pools. Raises: ConfigError and TraceError as `measure`."""
        setting, target = self._setting, self._setting.target
        trace = (setting.trace if probe.whole else setting.stretch).faster(probe.rate)
        workload, facts = opened(trace)
        requests = self._requests.get(trace)
        if requests is None:
            requests = self._requests[trace] = list(workload.requests)
        config = configured(setting, probe.candidate)
        cost, times = self._priced(config)
        hits = self._hits_of(trace, workload.block_tokens, config, cost)
        first_s = self._first_tokens(trace, requests, hits, probe.candidate, config, cost, times)
        late = [first - one.arrival_s > target.ttft_s for first, one in zip(first_s, requests, strict=True)]
        lost = probe.may_stop and sum(late) > misses_allowed(target, len(requests))
        finish_s, peak = first_s, 0
        if not lost:
            finish_s, peak = self._decoded(trace, requests, first_s, config, cost, times)
        stop_s = facts.last_s + target.ttft_s + facts.longest_output * target.tpot_s
        rows = _rows(requests, hits, first_s, finish_s, stop_s)
        dies = config.decode.dies_per_instance
        verdict = judged(target, rows, asked_s=facts.last_s, worst_s=facts.worst_s, batch=peak / dies)
        return replace(verdict, screened=True, tpot_p99_s=math.nan if lost else verdict.tpot_p99_s)

    def _priced(self, config: ServeConfig) -> tuple[CostModel, ScreeningTimes]:
        decode, prefill = divisions(config.simulation)
        cost = self._costs.get((decode, prefill))
        if cost is None:
            cost = self._costs[decode, prefill] = cost_model(config)
        key = decode, prefill, config.prefill.dies_per_instance, config.decode.dies_per_instance
        times = self._times.get(key)
        if times is None:
            tables = TableTimes(cost, config.simulation, key[2], key[3])
            times = self._times[key] = ScreeningTimes(tables, cost, key[3], config.simulation.drafts)
        return cost, times

    def _hits_of(self, trace: TraceChoice, block_tokens: int, config: ServeConfig, cost: CostModel) -> list[int]:
        """Without a pool, the caches of all prefill instances count: routing prefers the one that has a prefix."""
        capacity = 0
        if config.engine.prefix_reuse:
            plan = cost.hbm_plan("prefill", config.prefill.dies_per_instance)
            capacity = plan.instance_kv_tokens * config.prefill.replicas
            pool_bytes = config.kvcache.replicas * config.kvcache.ub_memory_mib * config.kvcache.low_water * 2**20
            capacity = max(capacity, int(pool_bytes / cost.shape.kv_token_bytes()))
        whole = _at_any_rate(trace)
        if whole not in self._distinct:
            blocks = {key for one in self._requests[trace] for key in enumerate(one.blocks)}
            self._distinct[whole] = len(blocks) * block_tokens
        key = whole, min(capacity, self._distinct[whole])
        hits = self._hits.get(key)
        if hits is None:
            hits = self._hits[key] = prefix_hits(self._requests[trace], block_tokens, key[1])
        return hits

    def _first_tokens(
        self, trace: TraceChoice, requests: list[TraceRequest], hits: list[int], candidate: Candidate,
        config: ServeConfig, cost: CostModel, times: ScreeningTimes,
    ) -> "array[float]":  # fmt: skip
        """When each request's first token is sampled [s]: what decode does cannot change it."""
        key = trace, candidate.prefill, candidate.prefills, candidate.decode.redundant, id(hits)
        known = self._prompts.get(key)
        if known is not None:
            return known
        pool, simulation = config.prefill, config.simulation
        reads = config.kvcache.replicas > 0
        queues = [
            PrefillQueue(
                times, _slowdown(config, f"prefill-{number}"), pool.max_step_tokens, pool.max_sequences, lookup=reads
            )
            for number in range(pool.replicas)
        ]  # fmt: skip
        first_s = array("d", [math.nan]) * len(requests)
        gb_per_s, npus = simulation.pool_gb_per_s or None, pool.npus_per_instance
        for row, (request, cached) in enumerate(zip(requests, hits, strict=True)):
            now = request.arrival_s + simulation.gateway_s
            for one in queues:
                one.advance(now, first_s)
            chosen = queues[min([(one.load(now), place) for place, one in enumerate(queues)])[1]]
            load_s = float(cost.pool_load_s(cost.kv_bytes(cached), npus, gb_per_s)) if cached and reads else 0.0
            chosen.add(now, row, cached, request.prompt_tokens - cached, load_s)
        for one in queues:
            one.advance(math.inf, first_s)
        self._prompts[key] = first_s
        return first_s

    def _decoded(
        self, trace: TraceChoice, requests: list[TraceRequest], first_s: "array[float]", config: ServeConfig,
        cost: CostModel, times: ScreeningTimes,
    ) -> tuple["array[float]", int]:  # fmt: skip
        """When each request ends [s], and the most sequences of an instance."""
        pool, block = config.decode, config.engine.block_tokens
        groups = cost.decode.parallelism.groups(pool.dies_per_instance)
        tokens = cost.hbm_plan("decode", pool.dies_per_instance).kv_tokens
        finish_s = array("d", first_s)
        limit = max(1, pool.max_sequences // groups)
        instances = [
            DecodeLockstep(times, _slowdown(config, f"decode-{number}"), groups, limit, tokens, finish_s)
            for number in range(pool.replicas)
        ]
        steps = self._steps_of(trace, requests, config)
        ready_s = [
            first + cost.handoff_s(cost.kv_bytes(one.prompt_tokens)) if count else math.inf
            for first, one, (count, _) in zip(first_s, requests, steps, strict=True)
        ]
        for row in sorted(range(len(requests)), key=ready_s.__getitem__):
            count, growth = steps[row]
            if not count:
                break
            request, now = requests[row], ready_s[row]
            for one in instances:
                if one.next_s <= now:
                    one.advance(now)
            chosen = min(instances, key=_inside)
            blocks = -(-(request.prompt_tokens + request.output_tokens) // block)
            chosen.join(now, row, count, blocks, float(request.prompt_tokens + 1), growth)
        for one in instances:
            one.advance(math.inf)
        return finish_s, max(one.peak for one in instances)

    def _steps_of(
        self, trace: TraceChoice, requests: list[TraceRequest], config: ServeConfig
    ) -> list[tuple[int, float]]:
        """Iterations of each request, and the tokens of each: as the simulation draws them by seed."""
        found = self._drafts.get(_at_any_rate(trace))
        if found is None:
            simulation, found = config.simulation, []
            for row, one in enumerate(requests):
                seed = mix64(simulation.seed ^ mix64(row))
                extra = rate_of(seed, one.output_tokens, simulation.drafts, simulation.acceptance)
                found.append((steps_for(one.output_tokens - 1, extra), 1.0 + extra))
            self._drafts[_at_any_rate(trace)] = found
        return found


def fewest_screened(setting: PlanSetting, wanted: SearchLimits, factor: float) -> Candidate | None:
    """The plan of two pools with the fewest NPUs at this factor on the load, by screening alone; None if none holds.

    Raises: TraceError for a trace that cannot be read.
    """
    config, target = setting.config, setting.target
    busier = replace(setting, trace=setting.trace.faster(factor), stretch=setting.stretch.faster(factor))
    load = demand(opened(busier.trace)[0], reuse=config.engine.prefix_reuse)
    begin = feasible.start(cost_model(config), config, load, replace(wanted, modes=("disaggregated",)), target)
    screen = Screen(busier)
    known = Knowledge(begin.space, target, begin.prefill, begin.decode)
    return find_least(known, lambda probes: [screen(one) for one in probes])


def can_screen(setting: PlanSetting) -> bool:
    """Whether queues describe a load: not a closed loop, nor experts whose load is drawn or recorded."""
    return setting.trace.concurrency is None and not setting.config.simulation.routing


def _slowdown(config: ServeConfig, name: str) -> Slowdown:
    return Slowdown(config.simulation, config.simulation.seed, ReplicaId(name), averaged=name.startswith("decode"))


def _at_any_rate(trace: TraceChoice) -> TraceChoice:
    """The key of what does not depend on the rate."""
    return replace(trace, rate=1.0)


def _rows(
    requests: list[TraceRequest], hits: list[int], first_s: "array[float]", finish_s: "array[float]", stop_s: float
) -> RequestColumns:
    """The columns that a simulation fills, as far as SLOs are judged by them."""
    ended = [finish <= stop_s for finish in finish_s]
    return RequestColumns(
        arrival_s=array("d", [one.arrival_s for one in requests]),
        first_token_s=array("d", [first if first <= stop_s else math.nan for first in first_s]),
        finish_s=array("d", [one if good else math.nan for one, good in zip(finish_s, ended, strict=True)]),
        prompt_tokens=array("q", [one.prompt_tokens for one in requests]),
        output_tokens=array("q", [one.output_tokens for one in requests]),
        cached_tokens=array("q", hits),
        outcome=array("b", [Outcome.FINISHED if good else Outcome.UNFINISHED for good in ended]),
    )


def _inside(instance: DecodeLockstep) -> int:
    return instance.inside
