"""Simulation of many supernodes, each independent with its own share of the requests, on any number of processes.

Supernodes have their own gateways, pools and KV-cache pool and share nothing, so that the result does not depend on the
number of processes.
"""

import gc
import math
import multiprocessing
import time
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, fields, replace
from functools import partial
from multiprocessing.context import SpawnContext
from pathlib import Path
from queue import Empty
from typing import Any

import numpy as np

from hardware.faults import Fault
from serving import compiled
from serving.config.serve import ServeConfig
from serving.faults.scenario import CommandConfig
from serving.instance.core.placeholder import mix64
from serving.virtual.result import DecisionRecord, RequestColumns, SimResult, SimulatedPoint, Totals
from serving.virtual.simulation import simulate
from serving.virtual.workload.columns import RequestStream

Progress = Callable[[int, float, int], None]
"""Called with the index of a supernode, its virtual time [s] and the number of its requests that have arrived."""

_POLL_S = 0.2


@dataclass(frozen=True, slots=True)
class Plan:
    """Simulation to run, as plain values that can be sent to a process.

    Attributes:
        open_shard: returns the workload of supernode i of n; a module-level function, or a partial of one.
        faults: by supernode; fewer entries than supernodes mean none for the others.
        commands: of operators, on the first supernode.
    """

    config: ServeConfig
    open_shard: Callable[[int, int], RequestStream]
    faults: tuple[tuple[Fault, ...], ...] = ()
    timeline_step_s: float | None = None
    stop_s: float | None = None
    check: bool = False
    commands: tuple[CommandConfig, ...] = ()


def simulate_supernodes(plan: Plan, name: str, *, processes: int = 1, progress: Progress | None = None) -> SimResult:
    """Simulate all supernodes of a configuration.

    Args:
        name: of the whole workload, for reports.
        processes: number of worker processes, started and ended by this call.
    Raises: ConfigError as `simulate`, TraceError for a bad trace.
    """
    begun = time.perf_counter()
    count = plan.config.simulation.supernodes
    if count == 1:
        return _run(plan, 0, _told(0, progress))
    if processes == 1:
        parts = [_run(plan, number, _told(number, progress)) for number in range(count)]
    else:
        parts = _in_processes(plan, count, min(processes, count), progress)
    return merge_results(parts, name, plan.config.simulation.seed, time.perf_counter() - begun)


def seed_of(seed: int, number: int) -> int:
    """The seed of one supernode; the first one uses the seed of the run."""
    return seed if number == 0 else mix64(seed ^ mix64(number))


def _told(number: int, progress: Progress | None) -> Callable[[float, int], None] | None:
    return None if progress is None else lambda at_s, arrived: progress(number, at_s, arrived)


def _run(plan: Plan, number: int, progress: Callable[[float, int], None] | None) -> SimResult:
    config = plan.config
    gc.collect()  # the supernode before this one is a large cycle, and collections are rare here
    return simulate(
        config,
        plan.open_shard(number, config.simulation.supernodes),
        faults=plan.faults[number] if number < len(plan.faults) else (),
        timeline_step_s=plan.timeline_step_s,
        stop_s=plan.stop_s,
        progress=progress,
        seed=seed_of(config.simulation.seed, number),
        check=plan.check,
        commands=plan.commands if number == 0 else (),
    )


def _work(plan: Plan, number: int) -> SimResult:
    return _run(plan, number, partial(tell, number))


def _in_processes(plan: Plan, count: int, processes: int, progress: Progress | None) -> list[SimResult]:
    context: SpawnContext = multiprocessing.get_context("spawn")
    reports = context.Queue()
    begun = (reports, compiled.in_use())
    with ProcessPoolExecutor(processes, mp_context=context, initializer=begin, initargs=begun) as pool:
        futures = [pool.submit(_work, plan, number) for number in range(count)]
        try:
            while not all(future.done() for future in futures):
                for report in _read(reports):
                    if progress is not None:
                        progress(*report)
            return [future.result() for future in futures]
        finally:
            pool.shutdown(cancel_futures=True)


def _read(reports: Any) -> Iterable[tuple[int, float, int]]:  # noqa: ANN401
    """The available reports, or the next one; none after a timeout."""
    try:
        yield reports.get(timeout=_POLL_S)
        while True:
            yield reports.get_nowait()
    except Empty:
        return


# Merges the results of several supernodes: requests by arrival, time lines added up.

_KEPT_DECISIONS = 2000
_SHARES = ("prefill_kv_share", "decode_kv_share", "pool_share", "ub_share", "rdma_share", "vpc_share", "step_s")
"""Fields that are means over supernodes; the other fields are sums."""


def merge_results(results: Sequence[SimResult], workload: str, seed: int, wall_s: float) -> SimResult:
    """Merge the results of all supernodes into one.

    Args:
        results: in order of the supernodes; at least one.
        workload: name of the whole workload.
    """
    first = results[0]
    counts: Counter[str] = Counter()
    for one in results:
        counts.update(one.decision_counts)
    decisions: list[DecisionRecord] = []
    for number, one in enumerate(results):
        decisions += [replace(decision, subject=f"sn{number} {decision.subject}") for decision in one.decisions]
    decisions.sort(key=lambda decision: decision.at_s)
    return SimResult(
        name=first.name,
        workload=workload,
        seed=seed,
        supernodes=len(results),
        config=first.config | {"supernodes": str(len(results))},
        requests=_merge_rows([one.requests for one in results]),
        timeline=_merge_timelines([one.timeline for one in results]),
        timeline_step_s=first.timeline_step_s,
        decisions=decisions[-_KEPT_DECISIONS:],
        decision_counts=dict(sorted(counts.items())),
        faults=sorted(
            (replace(fault, target=f"sn{n} {fault.target}") for n, one in enumerate(results) for fault in one.faults),
            key=lambda fault: fault.at_s,
        ),
        instances=[
            replace(instance, name=f"sn{number} {instance.name}")
            for number, one in enumerate(results)
            for instance in one.instances
        ],
        totals=_merge_totals(results),
        wall_s=wall_s,
        scaling=sorted(
            (replace(change, pool=f"sn{n} {change.pool}") for n, one in enumerate(results) for change in one.scaling),
            key=lambda change: change.at_s,
        ),
        experts=sorted(
            (replace(one, group=f"sn{n} {one.group}") for n, each in enumerate(results) for one in each.experts),
            key=lambda one: one.at_s,
        ),
    )


def _merge_rows(parts: Sequence[RequestColumns]) -> RequestColumns:
    merged = RequestColumns()
    arrivals = np.concatenate([np.array(part.arrival_s) for part in parts])
    order = np.argsort(arrivals, kind="stable")
    for column in fields(RequestColumns):
        whole: array[float] = array(getattr(merged, column.name).typecode)
        for part in parts:
            whole.extend(getattr(part, column.name))
        values = np.array(whole)[order]
        setattr(merged, column.name, array(whole.typecode, values.tobytes()))
    return merged


def _merge_timelines(lines: Sequence[list[SimulatedPoint]]) -> list[SimulatedPoint]:
    """Point by point; a supernode that has ended keeps its last point, without work."""
    points = []
    for index in range(max((len(line) for line in lines), default=0)):
        now = [line[index] if index < len(line) else _idle(line[-1]) for line in lines if line]
        sums: dict[str, float] = {}
        for column in fields(SimulatedPoint):
            values = [getattr(point, column.name) for point in now]
            sums[column.name] = sum(values) / len(values) if column.name in _SHARES else sum(values)
        sums["at_s"] = max(line[index].at_s for line in lines if index < len(line))
        points.append(SimulatedPoint(**sums))  # type: ignore[arg-type]  # sums of whole numbers are whole
    return points


def _idle(last: SimulatedPoint) -> SimulatedPoint:
    return replace(
        last,
        prefill_queue_tokens=0,
        prefill_waiting=0,
        decode_waiting=0,
        decode_batch=0,
        prefill_kv_share=0.0,
        decode_kv_share=0.0,
        ub_share=0.0,
        rdma_share=0.0,
        vpc_share=0.0,
        step_s=0.0,
    )


def _merge_totals(results: Sequence[SimResult]) -> Totals:
    """Sums; the NPUs of a supernode count until the last supernode has ended."""
    parts = [one.totals for one in results]
    sums = {column.name: sum(getattr(part, column.name) for part in parts) for column in fields(Totals)}
    sums["load_s"] = max((part.load_s for part in parts), default=0.0)
    sums["end_s"] = end_s = max((part.end_s for part in parts), default=math.nan)
    for one in results:
        last = one.timeline[-1]
        npus = last.prefill_npus + last.decode_npus + last.starting_npus
        sums["npu_seconds"] += npus * (end_s - one.totals.end_s)
    return Totals(**sums)


# Progress reports of a process that simulates some of the supernodes.
#
# Imports no module that may be compiled: a process starts in this module, before it knows whether it runs compiled.

_QUEUE: Any = None


def begin(queue: Any, folder: Path | None) -> None:  # noqa: ANN401 - a queue between processes has no type to name
    """Initialize the process.

    Args:
        queue: to the parent process, for (supernode, virtual time [s], requests arrived).
        folder: see `compiled.begin_worker`.
    """
    global _QUEUE
    _QUEUE = queue
    compiled.begin_worker(folder)


def tell(number: int, at_s: float, arrived: int) -> None:
    """Report the progress of a supernode: virtual time [s] and requests arrived."""
    _QUEUE.put((number, at_s, arrived))
