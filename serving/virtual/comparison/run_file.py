"""A simulation's result.json, as far as a comparison reads it."""

from pathlib import Path

import msgspec

from loadgen import json_text
from loadgen.errors import NOT_JSON
from serving.errors import ConfigError
from serving.regular_file import read_regular
from serving.virtual.report.result_json import SCHEMA

RESULT = "result.json"
_MOST_BYTES = 1 << 30
"""Largest file that is read; one with rows of a million requests takes a tenth of it."""


class LatencyRead(msgspec.Struct, frozen=True):
    """`LatencyFigures` of a file [s]; None where no value was counted."""

    mean: float | None
    p50: float | None
    p90: float | None
    p99: float | None
    maximum: float | None


class GoodputRead(msgspec.Struct, frozen=True):
    """See `Goodput`."""

    good_per_s: float
    attainment: float | None


class ThroughputRead(msgspec.Struct, frozen=True):
    """See `RunThroughput`."""

    requests_per_s: float | None
    input_tokens_per_s: float | None
    output_tokens_per_s: float | None
    output_tokens_per_npu_s: float | None


class CacheRead(msgspec.Struct, frozen=True):
    """See `CacheSummary`."""

    hit_share: float | None
    pulled_share: float | None


class ComparedPool(msgspec.Struct, frozen=True):
    """See `PoolSummary`."""

    name: str
    peak_npus: int
    busy_share: float | None


class SummaryRead(msgspec.Struct, frozen=True):
    """See `Summary`."""

    duration_s: float
    requests: int
    outcomes: dict[str, int]
    ttft_s: LatencyRead
    tpot_s: LatencyRead
    e2e_s: LatencyRead
    goodput: GoodputRead | None
    throughput: ThroughputRead
    cache: CacheRead
    pools: list[ComparedPool]
    npu_hours: float | None


class RequestsRead(msgspec.Struct, frozen=True):
    """Columns of requests, in order of arrival; see `RequestColumns`."""

    arrival_s: list[float]
    prompt_tokens: list[int]
    output_tokens: list[int]
    first_token_s: list[float | None]
    finish_s: list[float | None]


class SimulatedRun(msgspec.Struct, frozen=True):
    """One run's document.

    Attributes:
        curves: quantiles of each latency at the shares of `share`; empty in files of older versions.
        requests: None unless the file was written with --requests.
        path: of the file.
    """

    schema: str
    name: str
    workload: str
    seed: int
    summary: SummaryRead
    config: dict[str, str]
    decision_counts: dict[str, int]
    timeline: dict[str, list[float | None]]
    curves: dict[str, list[float | None]] = {}
    requests: RequestsRead | None = None
    path: str = ""


def read_run(path: Path) -> SimulatedRun:
    """Read a run's folder or file.

    Raises: ConfigError, in one line, if the file does not exist or is not the result of a simulation.
    """
    file = path / RESULT if path.is_dir() else path
    try:
        found = json_text.decode(read_regular(file, most_bytes=_MOST_BYTES), SimulatedRun)
    except FileNotFoundError:
        raise ConfigError(f"{path} holds no {RESULT}: run `cloudmatrix simulate --out {path}` first") from None
    except OSError as error:
        raise ConfigError(f"cannot read {file}: {error.strerror or error}") from None
    except NOT_JSON as error:
        raise ConfigError(f"{file} is no {RESULT} of `cloudmatrix simulate`: {error}") from None
    if found.schema != SCHEMA:
        raise ConfigError(f"{file} has schema {found.schema!r}, not {SCHEMA!r}: simulate again with this version")
    return msgspec.structs.replace(found, path=str(path))
