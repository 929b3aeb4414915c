"""Rows for `cost --fit` and `cost --judge` from runs of `loadgen`: one of decode per run, and one of prefill if usable.

Client-side measurements of an engine: the time per token of sequences that decode together, and the time to first token
of requests without a queue. The latter includes gateway and handoff, which become a fixed time per step.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import fmean, median

import msgspec

from hardware.cost.measured_file import MeasuredFile, MeasuredRow, read_measured
from hardware.nesting import parse_json
from hardware.regular_file import read_regular_text
from serving.errors import ConfigError

RESULT = "result.json"
REQUESTS = "requests.jsonl"
"""Files of a run's folder; see `loadgen/run_folder.py`."""
LEAST_TOKENS = 8
"""Fewest tokens of a response that is usable for decode."""
LEAST_REQUESTS = 5
"""Fewest requests of a run that is usable for a kind of step."""


class MeasuredRequest(msgspec.Struct, frozen=True):
    """The fields read from one line of `requests.jsonl`; times in seconds from the start of the run."""

    outcome: str
    chunk_times_s: list[float]
    warmup: bool = False
    started_s: float | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None


def measured_rows(path: Path, dies: int | None, per_npu: float, *, flag: str) -> MeasuredFile:
    """Rows of a file, or of runs if the path is a folder.

    Args:
        dies: as of `rows_of_runs`; None for a file, whose rows include it.
        flag: the path's flag, for messages.
    Raises: ConfigError, SpecError; a bad row gives one line.
    Effects: reads the file or the runs.
    """
    if not path.is_dir():
        if dies is not None:
            raise ConfigError(f"--dies goes with runs of loadgen: rows of {path} contain it")
        return read_measured(path)
    if dies is None:
        raise ConfigError(f"{flag} {path}: add --dies N, of the measured instance: runs do not contain it")
    return rows_of_runs(path, dies, per_npu, flag=flag)


def rows_of_runs(path: Path, dies: int, per_npu: float, *, flag: str = "--fit") -> MeasuredFile:
    """Rows of a run's folder, or of all runs directly below a folder.

    Args:
        dies: of the decoding instance, and of the one that computes prompts.
        per_npu: dies of an NPU.
        flag: the path's flag, for messages.
    Raises: ConfigError if there is no run, or none has usable data.
    Effects: reads the runs.
    """
    folders = [path] if (path / RESULT).exists() else sorted(below.parent for below in path.glob(f"*/{RESULT}"))
    if not folders:
        raise ConfigError(f"{flag} {path}: holds no {RESULT}; run `loadgen run --out {path}/NAME` first")
    rows: list[MeasuredRow] = []
    for folder in folders:
        records = [record for record in _requests(folder / REQUESTS) if _tells(record)]
        rows += _decode_row(folder, records, dies, per_npu) + _prefill_row(folder, records, dies)
    if not rows:
        raise ConfigError(
            f"{flag} {path}: no run has {LEAST_REQUESTS} answers of {LEAST_TOKENS} tokens, or so many prompts that "
            "nothing waited before"
        )
    return MeasuredFile(f"measured by loadgen: {path.resolve().name}", tuple(rows))


def _requests(path: Path) -> list[MeasuredRequest]:
    """All lines of a run. Raises: ConfigError naming the line that cannot be read."""
    found = []
    try:
        lines = read_regular_text(path).splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from error
    for number, line in enumerate(lines, 1):
        try:
            found.append(msgspec.convert(parse_json(line), MeasuredRequest))
        except ValueError as error:  # msgspec's too
            raise ConfigError(f"{path}:{number}: not a request record ({error})") from None
    return found


def _tells(record: MeasuredRequest) -> bool:
    known = record.input_tokens is not None and record.output_tokens is not None and record.started_s is not None
    return known and record.outcome == "ok" and not record.warmup and len(record.chunk_times_s) > 0


def _decode_row(folder: Path, records: Sequence[MeasuredRequest], dies: int, per_npu: float) -> list[MeasuredRow]:
    """Time per token and the batch size around each token, averaged over the run's tokens."""
    spans, contexts, tokens = [], [], 0
    for record in records:
        chunks, answer = record.chunk_times_s, record.output_tokens or 0
        if answer >= LEAST_TOKENS and chunks[-1] > chunks[0]:
            spans.append((chunks[0], chunks[-1]))
            contexts.append((record.input_tokens or 0) + answer / 2)
            tokens += answer - 1
    if len(spans) < LEAST_REQUESTS:
        return []
    lasted = sum(end - begin for begin, end in spans)
    values = {
        "dies": float(dies),
        "batch_per_npu": round(_together(spans) * per_npu / dies, 3),
        "context_tokens": fmean(contexts),
        "drafts": 0.0,
        "acceptance": 0.0,
        "tpot_ms": 1e3 * lasted / tokens,
    }
    return [MeasuredRow(f"{folder}: decode", "decode", values, folder.name)]


def _together(spans: Iterable[tuple[float, float]]) -> float:
    """Mean number of simultaneously open spans, averaged over the time within spans."""
    changes = sorted([(begin, 1) for begin, _ in spans] + [(end, -1) for _, end in spans])
    seen = weight = 0.0
    count, before = 0, changes[0][0]
    for at, change in changes:
        seen += count * count * (at - before)
        weight += count * (at - before)
        count, before = count + change, at
    return seen / weight


def _prefill_row(folder: Path, records: Sequence[MeasuredRequest], dies: int) -> list[MeasuredRow]:
    """Time to first token of requests that had the instance to themselves until then."""
    alone, latest = [], float("-inf")
    ordered = sorted(records, key=lambda record: record.started_s or 0.0)
    for at, record in enumerate(ordered):
        begin, first = record.started_s or 0.0, record.chunk_times_s[0]
        following = ordered[at + 1].started_s if at + 1 < len(ordered) else None
        if latest <= begin and (following is None or first <= following):
            alone.append(record)
        latest = max(latest, first)
    if len(alone) < LEAST_REQUESTS:
        return []
    prompts = [record.input_tokens or 0 for record in alone]
    cached = sum(record.cached_tokens or 0 for record in alone) / max(1, sum(prompts))
    values = {
        "dies": float(dies),
        "tokens_per_die": fmean(prompts) * (1 - cached) / dies,
        "prompt_tokens": fmean(prompts),
        "cached_share": cached,
        "step_ms": 1e3 * median(record.chunk_times_s[0] - (record.started_s or 0.0) for record in alone),
    }
    return [MeasuredRow(f"{folder}: prefill", "prefill", values, folder.name)]
