"""Merges the results of several supernodes: requests by arrival, time lines added up."""

import math
from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import fields, replace

import numpy as np

from serving.virtual.result import DecisionRecord, RequestColumns, SimResult, SimulatedPoint, Totals

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
