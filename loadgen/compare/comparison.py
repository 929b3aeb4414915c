"""Compares runs: which figures differ, how surely, and whether apples are compared with apples."""

from collections.abc import Callable, Sequence
from enum import StrEnum
from functools import partial
from pathlib import Path

import msgspec
import numpy as np

from loadgen.compare.statistics import Statistic, bootstrap_ratio, common_requests, request_values, welch_ratio
from loadgen.errors import UsageError
from loadgen.record import RequestRecord
from loadgen.result import Repetition, RunResult
from loadgen.run_folder import REQUESTS, RESULT, SWEEP, read_records, read_result, read_sweep
from loadgen.run_report.names import METRIC_TITLES, count_by_kind

# Sides of a comparison: a run's folder, a `result.json`, or a folder that holds several runs of the same thing.


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
        caches = [result.cache for result in self.results if result.cache]
        total = sum(cache.input_tokens for cache in caches)
        return sum(cache.cached_tokens for cache in caches) / total if total else None


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


# Compares runs: which figures differ, how surely, and whether apples are compared with apples.

_LATENCIES = ("ttft", "tpot", "itl", "e2e")
_PER_REQUEST = ("ttft", "tpot", "e2e")
_IGNORED_SETTINGS = frozenset(
    {"out", "label", "metadata", "json", "quiet", "report", "save_prompts"}
    | {"save_result", "save_detailed", "append_result", "result_dir", "result_filename"}
)
"""Flags that only define output and its paths."""


MOST_CACHED_APART = 0.05
"""Shares of prompt tokens from a cache that differ by more are a difference of their own."""


class ComparisonVerdict(StrEnum):
    """Verdict that the interval of a ratio allows."""

    BETTER = "better"
    WORSE = "worse"
    NOT_SHOWN = "no difference shown"
    UNKNOWN = "not known"  # no interval


class Method(StrEnum):
    """Method of the intervals."""

    REPETITIONS = "Welch's t interval over repetitions"
    PAIRED = "bootstrap over the same requests in both runs"
    REQUESTS = "bootstrap over requests"
    NONE = "no intervals"


class ComparedFigure(msgspec.Struct, frozen=True, kw_only=True):
    """One figure of both sides. `ratio` = other / baseline; `higher_is_better` is the direction of improvement."""

    name: str
    unit: str
    higher_is_better: bool
    baseline: float | None
    other: float | None
    ratio: float | None
    ci95: tuple[float, float] | None
    verdict: ComparisonVerdict


class SettingDifference(msgspec.Struct, frozen=True, kw_only=True):
    """A setting that differs between the two sides: a flag, or the url, endpoint, model, seed or version."""

    name: str
    baseline: object
    other: object


class RunComparison(msgspec.Struct, frozen=True, kw_only=True):
    """One run, or set of repetitions, against another."""

    schema: str = "loadgen-comparison/1"
    baseline: str
    other: str
    label: str = ""
    method: Method
    figures: list[ComparedFigure]
    settings: list[SettingDifference]
    warnings: list[str]


def compare(baseline: Side, other: Side, rng: np.random.Generator, *, label: str = "") -> RunComparison:
    """Compare two sides.

    Repetitions are used where both sides have at least two; else the requests of one run of each, with a note; else
    only ratios are given.
    """
    sides = (baseline, other)
    if all(len(side.repetitions) > 1 for side in sides):
        method, latencies = Method.REPETITIONS, _by_repetitions(sides)
    elif all(side.records for side in sides):
        pairs = common_requests(baseline.records, other.records)
        method = Method.PAIRED if pairs else Method.REQUESTS
        latencies = _by_requests(sides, rng, pairs)
    else:
        method, latencies = Method.NONE, _by_means(sides)
    return RunComparison(
        baseline=baseline.name,
        other=other.name,
        label=label,
        method=method,
        figures=[*_rates(sides, method), *latencies],
        settings=setting_differences(baseline, other),
        warnings=_warnings(sides, method),
    )


def setting_differences(baseline: Side, other: Side) -> list[SettingDifference]:
    """Flags and places that differ, by name; flags that only set output paths are left out."""
    first, second = baseline.results[0], other.results[0]
    pairs: dict[str, tuple[object, object]] = {
        name: (first.settings.get(name), second.settings.get(name))
        for name in sorted(first.settings.keys() | second.settings.keys())
        if name not in _IGNORED_SETTINGS
    }
    for name in ("url", "endpoint", "model", "seed", "version"):
        pairs[name] = (getattr(first, name), getattr(second, name))
    return [
        SettingDifference(name=name, baseline=left, other=right)
        for name, (left, right) in pairs.items()
        if left != right
    ]


def verdict_of(ci95: tuple[float, float] | None, *, higher_is_better: bool) -> ComparisonVerdict:
    """Better or worse only if the whole interval is on one side of 1."""
    if ci95 is None:
        return ComparisonVerdict.UNKNOWN
    low, high = ci95
    if low <= 1 <= high:
        return ComparisonVerdict.NOT_SHOWN
    return ComparisonVerdict.BETTER if (low > 1) == higher_is_better else ComparisonVerdict.WORSE


def _rates(sides: tuple[Side, Side], method: Method) -> list[ComparedFigure]:
    """Throughput, goodput and attainment: one value per run, so an interval needs repetitions."""
    readers: list[tuple[str, str, Callable[[Repetition], float | None]]] = [
        ("Request throughput", "requests/s", lambda run: run.throughput.requests_per_s),
        ("Output throughput", "tokens/s", lambda run: run.throughput.output_tokens_per_s),
        ("Goodput", "requests/s", lambda run: run.throughput.goodput_per_s),
        ("SLO attainment", "", lambda run: run.attainment),
    ]
    figures = []
    for name, unit, read in readers:
        found = [_values(side, read) for side in sides]
        if all(found):
            figures.append(_from_repetitions(name, unit, True, found, with_interval=method is Method.REPETITIONS))
    return figures


def _by_repetitions(sides: tuple[Side, Side]) -> list[ComparedFigure]:
    """Means and 99th percentiles of each latency, a value per repetition."""
    figures = []
    for name in _LATENCIES:
        readers: list[tuple[str, Callable[[Repetition], float | None]]] = [
            ("mean", lambda run, name=name: run.means.get(name)),  # type: ignore[misc]
            ("p99", lambda run, name=name: run.p99.get(name)),  # type: ignore[misc]
        ]
        for part, read in readers:
            found = [_values(side, read) for side in sides]
            if all(found):
                figures.append(
                    _from_repetitions(f"{METRIC_TITLES[name]} {part}", "s", False, found, with_interval=True)
                )
    return figures


def _by_means(sides: tuple[Side, Side]) -> list[ComparedFigure]:
    """The same figures without intervals."""
    return [
        msgspec.structs.replace(figure, ci95=None, verdict=ComparisonVerdict.UNKNOWN)
        for figure in _by_repetitions(sides)
    ]


def _values(side: Side, read: Callable[[Repetition], float | None]) -> list[float]:
    """A figure of every repetition; empty if some repetition lacks it."""
    values = [read(run) for run in side.repetitions]
    known = [value for value in values if value is not None]
    return known if len(known) == len(values) else []


def _from_repetitions(
    name: str, unit: str, higher_is_better: bool, found: Sequence[list[float]], *, with_interval: bool
) -> ComparedFigure:
    """One figure from one value per repetition."""
    means = [float(np.mean(values)) for values in found]
    ratio: float | None = None
    ci95 = None
    if all(value > 0 for values in found for value in values):
        ratio, ci95 = welch_ratio(*found)
    elif means[0] > 0:
        ratio = means[1] / means[0]
    ci95 = ci95 if with_interval else None
    return ComparedFigure(
        name=name,
        unit=unit,
        higher_is_better=higher_is_better,
        baseline=means[0],
        other=means[1],
        ratio=ratio,
        ci95=ci95,
        verdict=verdict_of(ci95, higher_is_better=higher_is_better),
    )


def _by_requests(
    sides: tuple[Side, Side], rng: np.random.Generator, pairs: list[tuple[int, int]]
) -> list[ComparedFigure]:
    """Mean, median and tail of each latency from the requests of one run each."""
    chosen = [
        [side.records[pair[position]] for pair in pairs] if pairs else side.records
        for position, side in enumerate(sides)
    ]
    figures = []
    for name in _PER_REQUEST:
        values = [request_values(name, records) for records in chosen]
        if all(np.isfinite(some).sum() > 1 for some in values):
            for part, statistic in _STATISTICS.items():
                ratio, ci95 = bootstrap_ratio(values[0], values[1], statistic, rng, paired=bool(pairs))
                figures.append(
                    ComparedFigure(
                        name=f"{METRIC_TITLES[name]} {part}",
                        unit="s",
                        higher_is_better=False,
                        baseline=float(statistic(values[0][np.isfinite(values[0])])),
                        other=float(statistic(values[1][np.isfinite(values[1])])),
                        ratio=ratio if np.isfinite(ratio) else None,
                        ci95=ci95,
                        verdict=verdict_of(ci95, higher_is_better=False),
                    )
                )
    return figures


def _warnings(sides: tuple[Side, Side], method: Method) -> list[str]:
    """Cautions to know before believing a verdict."""
    found = []
    if method in (Method.PAIRED, Method.REQUESTS):
        found.append(
            "One run of each: the intervals ignore what differs from run to run, so a verdict may not hold in a second "
            "pair of runs. Run with --repeats 3 or more to include it."
        )
    elif method is Method.NONE:
        found.append("Neither repetitions nor requests.jsonl on both sides: ratios only, without confidence.")
    for side in sides:
        if any(result.interrupted for result in side.results):
            found.append(f"{side.name} was interrupted.")
        if any(result.generator.is_bottleneck for result in side.results):
            found.append(f"In {side.name} the generator was the bottleneck: its figures are not the server's.")
        if any(result.generator.machine_was_busy for result in side.results):
            found.append(f"In {side.name} the machine was busy: its times are longer than the server's own.")
        failures = side.failure_share()
        if failures > 0:
            found.append(f"In {side.name} {100 * failures:.2g} % of the requests failed; latencies leave those out.")
    shares = [side.cached_share() or 0.0 for side in sides]
    if abs(shares[0] - shares[1]) > MOST_CACHED_APART:
        words = " and ".join(f"{share:.0%} in {side.name}" for side, share in zip(sides, shares, strict=True))
        found.append(
            f"Of the prompt tokens {words} came from a cache: a prompt that the server has seen before, by a replay or "
            "an equal --seed, is faster."
        )
    return found


_STATISTICS: dict[str, Statistic] = {
    "mean": partial(np.mean, axis=-1),
    "p50": partial(np.percentile, q=50, axis=-1),
    "p99": partial(np.percentile, q=99, axis=-1),
}
