"""One simulation from its configuration to its result."""

import gc
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from hardware.cost import CostModel
from hardware.errors import HardwareError
from hardware.faults import Fault
from serving.config.rank_checks import of_roles, roles_as_dies
from serving.config.serve import ServeConfig
from serving.config.simulated_cost import simulated_cost
from serving.errors import ConfigError
from serving.faults.scenario import CommandConfig
from serving.scaling.core.decision import Scaler
from serving.virtual.fault_injector import FaultInjector
from serving.virtual.result import RequestColumns, ScaleRecord, SimResult, Totals
from serving.virtual.role_changes import RoleChanges
from serving.virtual.scaling_loop import ScalingDriver, configured_scaler
from serving.virtual.supernode import Supernode
from serving.virtual.supernode_timeline import Timeline
from serving.virtual.work_done import accuracy, best_rates, with_work
from serving.virtual.workload.columns import RequestStream

Progress = Callable[[float, int], None]
"""Called with the virtual time [s] and the number of requests that have arrived."""
Enough = Callable[[float, RequestColumns], bool]
"""Called with the virtual time [s] and the requests so far. Returns: whether the run can end early."""

_POINTS = 600
"""Default number of points of the time line."""
_PROGRESS_EVENTS = 20_000
_EVENTS_BETWEEN_LOOKS = 4_000
_COLLECT_EVERY = 1_000_000


def cost_model(config: ServeConfig) -> CostModel:
    """The cost model of the configured device, model and engine.

    Raises: ConfigError if one cannot be read, or if draft tokens are configured for a model without a draft layer.
    """
    try:
        return simulated_cost(config)
    except HardwareError as error:
        raise ConfigError(str(error)) from error


def simulate(
    config: ServeConfig,
    workload: RequestStream,
    *,
    faults: tuple[Fault, ...] = (),
    timeline_step_s: float | None = None,
    stop_s: float | None = None,
    enough: Enough | None = None,
    progress: Progress | None = None,
    seed: int | None = None,
    check: bool = False,
    scaler: Scaler | None = None,
    commands: Sequence[CommandConfig] = (),
) -> SimResult:
    """Simulate one supernode until its last request has ended.

    Args:
        faults: to inject, in order of time.
        timeline_step_s: time between two points of the time line [s]; None = about 600 points.
        stop_s: end of the run [s]; open requests then count as unfinished.
        enough: called regularly to decide whether to end early.
        progress: called regularly.
        seed: replaces the configured seed.
        check: check at the end that every ledger balances.
        scaler: replaces the scaler configured in `[autoscaler]`.
        commands: of operators.
    Raises: ConfigError for a topology that is not possible, or commands that it does not have.
    """
    begun = time.perf_counter()
    seed = config.simulation.seed if seed is None else seed
    given, config = config, roles_as_dies(config)
    try:
        cost = simulated_cost(config)
        node = Supernode(config, cost, seed)
        for pool, settings in config.pools.items():
            for _ in range(settings.replicas):
                node.start_instance(pool)
    except HardwareError as error:
        raise ConfigError(f"{of_roles(given)}{error}") from error
    scaler = scaler or configured_scaler(config.slo, config.autoscaler)
    scaling = None if scaler is None else ScalingDriver(node, scaler)
    step_s = timeline_step_s or max(0.1, (workload.duration_s or 600.0) / _POINTS)
    timeline = Timeline(node, step_s)
    node.feed(workload)
    timeline.start()
    if scaling is not None:
        scaling.start()
    troubles = FaultInjector(node, faults)
    RoleChanges(node, given, commands)
    with _few_collections():
        _run(node, math.inf if stop_s is None else stop_s, progress, enough)
    timeline.end()
    if check:
        _check(node)
        if scaling is not None:
            scaling.fleet.check()
    for gateway in node.gateways:
        gateway.abandon()
    records = [] if scaling is None else scaling.records
    return _result(config, workload, node, timeline, troubles, records, seed, time.perf_counter() - begun)


def _run(node: Supernode, stop_s: float, progress: Progress | None, enough: Enough | None) -> None:
    """Run until every request has ended, or until `stop_s` or `enough` ends the run."""
    queue = node.queue
    at_once = _PROGRESS_EVENTS if enough is None else _EVENTS_BETWEEN_LOOKS
    while node.busy and len(queue) and queue.now <= stop_s:
        queue.run(stop_s, at_once)
        if enough is not None and enough(queue.now, node.book.rows):
            break
        if progress is not None:
            progress(queue.now, len(node.book.rows))
        if queue.next_at > stop_s:
            break


@contextmanager
def _few_collections() -> Iterator[None]:
    """Collect garbage rarely: few objects are part of a cycle, and frequent collections take an eighth of the time."""
    before = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(_COLLECT_EVERY, 50, 100)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()


def _check(node: Supernode) -> None:
    for instance in node.everyone:
        instance.check()
    for gateway in node.gateways:
        gateway.check()
    node.network.fabric.check()
    if node.pool is not None:
        node.pool.check()


def _result(
    config: ServeConfig,
    workload: RequestStream,
    node: Supernode,
    timeline: Timeline,
    troubles: FaultInjector,
    records: list[ScaleRecord],
    seed: int,
    wall_s: float,
) -> SimResult:
    book, movers = node.book, node.movers
    rows = book.rows
    instances, load_s = with_work(
        [*node.totals, *(node.totals_of(one) for one in node.everyone)],
        node.load, node.work_done(), node.queue.now, best_rates(node.cost, config, rows),
    )  # fmt: skip
    totals = Totals(
        end_s=node.queue.now,
        prompt_tokens_in=book.prompt_tokens_in,
        tokens_computed=sum(one.prompt_tokens for one in instances),
        tokens_cached=sum(rows.cached_tokens),
        tokens_pulled=sum(rows.pulled_tokens),
        tokens_out=book.tokens_out,
        tokens_generated=sum(one.output_tokens for one in instances),
        kv_bytes_handed_off=movers.handed_off,
        kv_bytes_pulled=movers.pulled,
        kv_bytes_stored=movers.stored,
        pool_lookups_blocks=movers.asked_blocks,
        pool_hits_blocks=movers.found_blocks,
        npu_seconds=timeline.npu_seconds,
        events=node.queue.handled,
        kv_bytes_sent=movers.sent,
        expert_bytes=node.expert_bytes,
        load_s=load_s,
    )
    return SimResult(
        name=config.model.name or config.model.path.name,
        workload=workload.name,
        seed=seed,
        supernodes=1,
        config=described(config) | accuracy(node.cost, config, rows, timeline.points, instances),
        requests=rows,
        timeline=timeline.points,
        timeline_step_s=timeline.step_s,
        decisions=book.decisions(),
        decision_counts=dict(sorted(book.counts.items())),
        faults=troubles.records(),
        instances=sorted(instances, key=lambda one: (one.pool, one.started_s, one.name)),
        totals=totals,
        wall_s=wall_s,
        scaling=records,
        experts=sorted(node.experts.records, key=lambda one: one.at_s) if node.experts is not None else [],
    )


def described(config: ServeConfig) -> dict[str, str]:
    """Description of the simulated system, for people."""
    simulation, kvcache = config.simulation, config.kvcache
    text = {
        "model": config.model.name or config.model.path.name,
        "device": simulation.device,
        "supernodes": str(simulation.supernodes),
        "NPUs": str(config.cluster.npus),
    }
    for name, pool in config.pools.items():
        text[name] = f"{pool.replicas} x {pool.npus_per_instance} NPUs"
    text["kvcache"] = f"{kvcache.replicas} x {kvcache.ub_memory_mib / 1024:,.0f} GiB" if kvcache.replicas else "none"
    text["KV block"] = f"{config.engine.block_tokens} tokens"
    accepted = simulation.acceptance if isinstance(simulation.acceptance, tuple) else (simulation.acceptance,)
    text["MTP"] = f"{simulation.drafts} drafted, {', '.join(f'{share:.0%}' for share in accepted)} accepted"
    text["SLO"] = f"TTFT {config.slo.ttft_s:g} s, TPOT {config.slo.tpot_s * 1e3:g} ms"
    text["autoscaler"] = config.autoscaler.policy
    text["routing"] = config.gateway.routing
    text["jitter"] = f"{simulation.jitter:g}, {simulation.spike_share:.1%} spikes of {simulation.spike_factor:g} x"
    return text
