"""Number of replicas of each pool that meets the SLOs with the fewest NPUs.

Every poll sizes all pools together. Traffic is converted to a load of each pool in instances (uncached prompt tokens
for prefill; sequences and KV blocks for decode). A slow plan follows the load forecast for the time when an instance
started now would serve; a fast reaction handles queues that would miss an SLO before that; the plan is then reduced to
the available NPUs. A pool grows at once and shrinks after a stabilization window; starting instances are not requested
twice.

Time is passed in and no call blocks, so the same code decides live on Ray and in virtual time.
"""

from dataclasses import dataclass, field
from typing import Literal

from msgspec import structs

from serving.config.scaling import AutoscalerConfig, SloConfig
from serving.scaling.core.budget import CapacityWatch, NpuRequest, Room, share_out
from serving.scaling.core.cache_plan import CachePlan
from serving.scaling.core.decision import PoolTarget, ScaleKind, Scaler, ScalingDecision
from serving.scaling.core.decode_work import DecodeWork
from serving.scaling.core.demand import Demand, Outlook, together
from serving.scaling.core.idle import IdleClock
from serving.scaling.core.pool_planner import PoolPlanner, Wanted
from serving.scaling.core.prompt_work import PromptWork
from serving.scaling.core.request_count import RequestCountScaler
from serving.scaling.core.slo_attribution import SloAttribution
from serving.scaling.core.totals import traffic_gains
from serving.values.signals import PoolSignals, ScalingSignals


def make_scaler(policy: Literal["requests", "slo"], slo: SloConfig, autoscaler: AutoscalerConfig) -> Scaler:
    """The scaler for `[autoscaler] policy`, except `none`, which has no scaler.

    Args:
        slo: targets; the baseline `requests` ignores them.
    """
    if policy == "requests":
        return RequestCountScaler(autoscaler.requests_per_instance, autoscaler.idle_to_zero_s, autoscaler.npu_budget)
    return Autoscaler(slo, autoscaler)


@dataclass(slots=True)
class Autoscaler:
    """The `Scaler` of `policy = "slo"`."""

    slo: SloConfig
    config: AutoscalerConfig
    _planners: dict[str, PoolPlanner] = field(default_factory=dict)
    _prompts: PromptWork = field(init=False)
    _decode: DecodeWork = field(init=False)
    _cache: CachePlan = field(init=False)
    _idle: IdleClock = field(init=False)
    _room: CapacityWatch = field(init=False)
    _attribution: SloAttribution = field(init=False)
    _before: ScalingSignals | None = None

    def __post_init__(self) -> None:
        self._prompts = PromptWork(self.slo.ttft_s)
        self._decode = DecodeWork()
        self._cache = CachePlan(self.config.hold_s)
        self._idle = IdleClock(self.config.idle_to_zero_s)
        self._room = CapacityWatch(self.config.npu_budget)
        self._attribution = SloAttribution(self.slo)

    def decide(self, signals: ScalingSignals) -> ScalingDecision:
        """Targets from now on; keeps the signals to compute differences at the next poll."""
        seconds = 0.0 if self._before is None else max(0.0, signals.now - self._before.now)
        self._see(signals, seconds)
        room = self._room.see(signals)
        outlooks = [
            self._planner(pool).outlook(signals.now, pool, pool.start_s or signals.start_s) for pool in signals.pools
        ]
        if not all(planner.settled(signals.now, self._settling_s(signals)) for planner in self._planners.values()):
            self._attribution.clear()
        demands = self._demands(signals, outlooks)
        self._teach(signals, demands, seconds)
        wanted = [
            self._wanted(signals, pool, demand, outlook)
            for pool, demand, outlook in zip(signals.pools, demands, outlooks, strict=True)
        ]
        targets = self._share_out(signals, wanted, room)
        if signals.cache is not None:
            targets.append(self._cache.decide(signals.now, seconds, signals.cache, self._idle))
        self._before = signals
        return ScalingDecision(signals.now, tuple(targets))

    def _see(self, signals: ScalingSignals, seconds: float) -> None:
        self._idle.see(signals)
        if self._before is None or seconds <= 0 or not signals.pools:
            return
        gains = traffic_gains(self._before.traffic, signals.traffic, seconds)
        self._prompts.see(gains, signals.pools[0], signals.traffic)
        self._decode.see(gains, signals.pools[-1])
        self._attribution.see(gains)
        for planner in self._planners.values():
            planner.load_target.forget(seconds)

    def _planner(self, pool: PoolSignals) -> PoolPlanner:
        if pool.pool not in self._planners:
            self._planners[pool.pool] = PoolPlanner(self.config.utilisation, self.config.hold_s)
        return self._planners[pool.pool]

    def _demands(self, signals: ScalingSignals, outlooks: list[Outlook]) -> list[Demand]:
        """Demands on the pools: the first pool computes prompts, the last one decodes, and a single pool does both."""
        if not signals.pools:
            return []
        first, last = signals.pools[0], signals.pools[-1]
        if len(signals.pools) > 1:
            prompts = self._prompts.demand(first, signals.traffic, outlooks[0])
            coming = signals.traffic.queued + first.sequences
            decode = self._decode.demand(last, outlooks[-1], coming, self._planner(last).load_target.utilisation)
            return [self._if_it_helps(prompts, signals), decode]
        decoding, computing = self._decode.now_instances(first), self._prompts.now_instances(first)
        prompts = self._prompts.demand(first, signals.traffic, outlooks[0], decoding)
        decode = self._decode.demand(
            first, outlooks[0], signals.traffic.queued, self._planner(first).load_target.utilisation
        )
        return [together(prompts, decode, computing, decoding)]

    def _teach(self, signals: ScalingSignals, demands: list[Demand], seconds: float) -> None:
        """Adapt decode's utilization target: met SLOs show how much of its cost estimate's margin may be used."""
        if demands and (load := demands[-1].load) is not None and (running := signals.pools[-1].running):
            load_target = self._planner(signals.pools[-1]).load_target
            load_target.kept(load / running, self._attribution.spent, seconds)

    def _settling_s(self, signals: ScalingSignals) -> float:
        """Time from a change until responses reflect the changed pools [s]."""
        return 2 * signals.start_s + self._decode.residence_s

    def _if_it_helps(self, prompts: Demand, signals: ScalingSignals) -> Demand:
        """While decode is full, limit the urgency of prefill to the rate of arriving prompts."""
        if not prompts.urgent or not self._decode.full(signals.pools[-1], signals.traffic.queued):
            return prompts
        urgent = min(prompts.urgent, self._prompts.now_instances(signals.pools[0]))
        why = f"{prompts.why_urgent}, but {self._decode.words(signals.pools[-1])}"
        return structs.replace(prompts, urgent=urgent, why_urgent=why)

    def _wanted(self, signals: ScalingSignals, pool: PoolSignals, demand: Demand, outlook: Outlook) -> Wanted:
        now, planner = signals.now, self._planner(pool)
        if pool.held_until > now:
            planner.wanted(now, pool, demand)  # for its history, which must be complete when the hold ends
            return Wanted(pool.target, ScaleKind.HELD, f"held for {pool.held_until - now:.0f} s more; {demand.why}")
        if self._idle.over(now) and pool.low == 0:
            kind = ScaleKind.ZERO if pool.target else ScaleKind.STAY
            return Wanted(0, kind, self._idle.words(now))
        if pool.target == 0 and pool.low == 0 and not self._idle.somebody:
            return Wanted(0, ScaleKind.STAY, self._idle.waits)
        broken = self._attribution.find(signals, pool, outlook, demand, planner.load_target, self._prompts)
        wanted = planner.wanted(now, pool, demand)
        if pool.target == 0 and wanted.target > 0 and self._idle.somebody:
            return Wanted(wanted.target, ScaleKind.WAKE, f"{self._idle.waits}; {wanted.reason}")
        if broken and pool.target < pool.high:
            more = max(wanted.target, pool.target + 1)
            return Wanted(more, ScaleKind.BURST, f"{broken}, so no fewer than {more}; {wanted.reason}")
        return wanted

    def _share_out(self, signals: ScalingSignals, wanted: list[Wanted], room: Room) -> list[PoolTarget]:
        free = [place for place, want in enumerate(wanted) if want.kind is not ScaleKind.HELD]
        frozen = [pool for place, pool in enumerate(signals.pools) if place not in free]
        held = sum(pool.target * pool.npus_per_instance for pool in frozen)
        missing = sum(max(0, pool.target - pool.running) * pool.npus_per_instance for pool in frozen)
        planned = sum(pool.target * pool.npus_per_instance for pool in signals.pools)
        held -= min(missing, max(0, planned - room.npus))  # unplaced held instances take no NPUs from other pools
        requests = [
            _npu_request(signals.pools[place], wanted[place].target, place == len(wanted) - 1) for place in free
        ]
        kept = _kept(signals, [signals.pools[place] for place in free], requests, frozen)
        shares = share_out(requests, max(room.npus - held, kept if frozen else 0))
        targets = [
            PoolTarget(pool.pool, pool.target, want.target, want.kind, want.reason)
            for pool, want in zip(signals.pools, wanted, strict=True)
        ]
        for place, share in zip(free, shares, strict=True):
            if share != wanted[place].target:
                fits = room.words(signals, self.config.npu_budget)
                targets[place] = _cut(signals, wanted[place], place, share, fits)
        return targets


def _npu_request(pool: PoolSignals, want: int, keeps: bool) -> NpuRequest:
    lacks = keeps and pool.running < pool.target
    least = min(pool.low, want)
    return NpuRequest(pool.target, want, least, min(pool.target, want) if lacks else least, pool.npus_per_instance)


def _kept(
    signals: ScalingSignals, free: list[PoolSignals], requests: list[NpuRequest], frozen: list[PoolSignals]
) -> int:
    """NPUs that holds may not take from the other pools, because a hold freezes only its own pool.

    The minimum of each other pool, as far as the pool has it already, and as far as the NPUs not used by held pools
    suffice.
    """
    least = [min(request.least, request.before) * request.npus for request in requests]
    there = [
        min(request.least, request.before, pool.running) * request.npus
        for request, pool in zip(requests, free, strict=True)
    ]
    placed = sum((pool.running + pool.draining) * pool.npus_per_instance for pool in frozen)
    return max(sum(there), min(sum(least), signals.npus_total - placed))


def _cut(signals: ScalingSignals, wanted: Wanted, place: int, share: int, room: str) -> PoolTarget:
    """The target of a pool whose request exceeds the NPUs, with the reason."""
    pool = signals.pools[place]
    fits = f"{wanted.target} wanted, {share} fit: {room}"
    later = place < len(signals.pools) - 1
    kind = ScaleKind.FIT
    if share == pool.target:
        kind = ScaleKind.STAY
    elif share < pool.target and later:
        kind, fits = ScaleKind.YIELD, f"{fits}; {signals.pools[-1].pool} comes first"
    return PoolTarget(pool.pool, pool.target, share, kind, f"{fits}; {wanted.reason}")
