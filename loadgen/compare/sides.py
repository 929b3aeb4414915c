"""Sides of a comparison: a run's folder, a `result.json`, or a folder that holds several runs of the same thing."""

from pathlib import Path

import msgspec

from loadgen.errors import UsageError
from loadgen.record import RequestRecord
from loadgen.result import Repetition, RunResult
from loadgen.run_folder import REQUESTS, RESULT, SWEEP, read_records, read_result, read_sweep
from loadgen.run_report.names import count_by_kind


class Side(msgspec.Struct, frozen=True, kw_only=True):
    """One side of a comparison.

    Attributes:
        name: as the user typed it. results: one, or one per run found.
        repetitions: main figures of each repetition, or of each run; never empty.
        records: measured requests of a single run, in the order of their intended times; empty with repetitions, and
            where there is no requests.jsonl.
    """

    name: str
    results: list[RunResult]
    repetitions: list[Repetition]
    records: list[RequestRecord] = []

    def failure_share(self) -> float:
        """Failed / (successful + failed), over all its runs."""
        kinds = [count_by_kind(result.outcomes) for result in self.results]
        failed = sum(kind["failed"] for kind in kinds)
        return failed / max(1, failed + sum(kind["ok"] for kind in kinds))

    def cached_share(self) -> float | None:
        """Prompt tokens read from a cache, over all its runs; None if the server did not report them."""
        told = [result.cache for result in self.results if result.cache]
        total = sum(cache.input_tokens for cache in told)
        return sum(cache.cached_tokens for cache in told) / total if total else None


def read_side(path: Path) -> Side:
    """Read a run, or all runs directly below a folder.

    Raises: UsageError if there is no run; TraceFormatError if a file is invalid.
    """
    if path.is_file() or (path / RESULT).exists():
        folders = [path]
    else:
        folders = sorted(below.parent for below in path.glob(f"*/{RESULT}"))
    if not folders:
        raise UsageError(f"{path} holds no {RESULT}; run `loadgen run --out {path}` first")
    results = [read_result(folder) for folder in folders]
    repetitions = results[0].repetitions if len(results) == 1 and len(results[0].repetitions) > 1 else []
    records: list[RequestRecord] = []
    if len(results) == 1 and not repetitions and (path / REQUESTS).exists():
        records = [record for record in read_records(path) if not record.warmup]
        records.sort(key=lambda record: (record.intended_s, record.index, record.turn))
    return Side(
        name=str(path),
        results=results,
        repetitions=repetitions or [as_repetition(one) for one in results],
        records=records,
    )


def sweep_sides(path: Path) -> dict[float, Side]:
    """The points of a sweep by their value; empty if the folder is none of a sweep.

    Raises: UsageError, TraceFormatError as `read_side`.
    """
    if not (path / SWEEP).exists():
        return {}
    return {point.value: read_side(path / point.folder) for point in read_sweep(path).points}


def as_repetition(result: RunResult) -> Repetition:
    """A whole run as one repetition among others."""
    return Repetition(
        requests=result.requests,
        duration_s=result.duration_s,
        throughput=result.throughput,
        means={name: metric.mean for name, metric in result.metrics.items() if metric.mean is not None},
        p99={name: metric.percentiles["99"] for name, metric in result.metrics.items() if "99" in metric.percentiles},
        attainment=result.slo.attainment if result.slo else None,
    )
