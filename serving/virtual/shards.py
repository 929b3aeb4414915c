"""Simulation of many supernodes, each independent with its own share of the requests, on any number of processes.

Supernodes have their own gateways, pools and KV-cache pool and share nothing, so that the result does not depend on the
number of processes.
"""

import gc
import multiprocessing
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing.context import SpawnContext
from queue import Empty
from typing import Any

from hardware.faults import Fault
from serving import compiled
from serving.config.serve import ServeConfig
from serving.instance.core.placeholder import mix64
from serving.virtual import shard_reports
from serving.virtual.merge import merge_results
from serving.virtual.result import SimResult
from serving.virtual.run import simulate
from serving.virtual.workload.request import RequestStream

Progress = Callable[[int, float, int], None]
"""Called with the index of a supernode, its virtual time [s] and the number of its requests that have arrived."""

_POLL_S = 0.2


@dataclass(frozen=True, slots=True)
class Plan:
    """Simulation to run, as plain values that can be sent to a process.

    Attributes:
        open_shard: returns the workload of supernode i of n; a module-level function, or a partial of one.
        faults: by supernode; fewer entries than supernodes mean none for the others.
    """

    config: ServeConfig
    open_shard: Callable[[int, int], RequestStream]
    faults: tuple[tuple[Fault, ...], ...] = ()
    timeline_step_s: float | None = None
    stop_s: float | None = None
    check: bool = False


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
    )


def _work(plan: Plan, number: int) -> SimResult:
    return _run(plan, number, partial(shard_reports.tell, number))


def _in_processes(plan: Plan, count: int, processes: int, progress: Progress | None) -> list[SimResult]:
    context: SpawnContext = multiprocessing.get_context("spawn")
    reports = context.Queue()
    begun = (reports, compiled.in_use())
    with ProcessPoolExecutor(processes, mp_context=context, initializer=shard_reports.begin, initargs=begun) as pool:
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
