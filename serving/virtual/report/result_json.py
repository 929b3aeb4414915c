"""A simulation's result as JSON: the same result gives the same bytes.

The document has a fixed order of fields; mappings are sorted by key; floats keep nine significant digits; values that
are not finite are null. Wall-clock time is omitted, so that two runs of one seed compare with `cmp`. Fields are those
of `Summary` and `SimResult`, in SI units; `timeline` is column-wise: one list per field of `SimulatedPoint`; `curves`
has quantiles of the latencies at the same shares. A reader checks `schema`: the number after the slash grows when a
field changes its meaning or is removed, not when one is added.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from serving.terminal import write_file
from serving.virtual.report.latencies import latencies
from serving.virtual.report.summary import Summary
from serving.virtual.result import RequestColumns, SimResult, SimulatedPoint

SCHEMA = "cloudmatrix-simulation/1"
_DIGITS = 9
_CURVE_POINTS = 201


def result_json(result: SimResult, summary: Summary, *, requests: bool = False) -> bytes:
    """The document.

    Args:
        requests: with every request, column-wise: one list per field of `RequestColumns`, in order of arrival.
    Returns: UTF-8 JSON with a newline at its end.
    """
    document = {
        "schema": SCHEMA,
        "name": result.name,
        "workload": result.workload,
        "seed": result.seed,
        "supernodes": result.supernodes,
        "summary": plain(summary),
        "totals": plain(result.totals),
        "config": plain(result.config),
        "instances": plain(result.instances),
        "faults": plain(result.faults),
        "decision_counts": plain(result.decision_counts),
        "decisions": plain(result.decisions),
        "scaling": plain(result.scaling),
        "experts": plain(result.experts),
        "timeline_step_s": plain(result.timeline_step_s),
        "timeline": _by_field(result.timeline),
        "curves": _curves(result.requests),
    }
    if requests:
        document["requests"] = _columns(result.requests)
    return msgspec.json.encode(document) + b"\n"


def write_json(path: Path, result: SimResult, summary: Summary, *, requests: bool = False) -> None:
    """Write the document to a file.

    Raises: ConfigError if the file cannot be written.
    """
    write_file(path, result_json(result, summary, requests=requests))


def plain(value: Any) -> Any:  # noqa: ANN401 # any value of a report
    """Dataclasses, lists and mappings as JSON values; floats rounded, nan and infinity as None."""
    if isinstance(value, float):
        return float(f"{value:.{_DIGITS}g}") if math.isfinite(value) else None
    if dataclasses.is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(value[key]) for key in sorted(value)}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    return value


def _by_field(points: Sequence[SimulatedPoint]) -> dict[str, list[float | int | None]]:
    """Points as one list per field: a third of the size, and the form that plotting tools expect."""
    names = [field.name for field in dataclasses.fields(SimulatedPoint)]
    return {name: [plain(getattr(point, name)) for point in points] for name in names}


def _curves(requests: RequestColumns) -> dict[str, list[float | None]]:
    """Quantiles of each latency at the same shares, so that two runs' distributions can be drawn together."""
    times = latencies(requests)
    shares = np.linspace(0, 1, _CURVE_POINTS)
    found: dict[str, list[float | None]] = {"share": plain(shares.tolist())}
    for name, values in (("ttft_s", times.ttft_s), ("tpot_s", times.tpot_s), ("e2e_s", times.e2e_s)):
        known = values[~np.isnan(values)]
        found[name] = plain(np.quantile(known, shares).tolist()) if len(known) else []
    return found


def _columns(requests: RequestColumns) -> dict[str, list[float | int | None]]:
    """Each column as a list; whole numbers need no rounding."""
    return {
        field.name: plain(column.tolist()) if column.typecode == "d" else column.tolist()
        for field in dataclasses.fields(requests)
        for column in (getattr(requests, field.name),)
    }
