"""`cloudmatrix cost --fit`: the profile of an engine from its measured steps, each with its error."""

import argparse
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import fmean, median
from typing import Any

import msgspec
from rich.table import Table

from hardware.cost import CostModel
from hardware.cost.accuracy import percent
from hardware.cost.engine_fit import EngineFit, JudgedRow, PhaseFit, fit_engine, judge
from hardware.cost.engine_profile import engine_text
from hardware.cost.measured_file import MeasuredFile, MeasuredRow, read_measured
from hardware.cost.trust import OWN_DEVICE, engine_text_of, fitted_region, quantity
from hardware.nesting import parse_json
from hardware.regular_file import read_regular_text
from serving.config.simulation import SimulationConfig
from serving.errors import ConfigError, NotWrittenError
from serving.terminal import table_console


def fit(cost: CostModel, arguments: argparse.Namespace) -> int:
    """Fit, print, and write the profile if requested.

    Args:
        cost: of the device and model of the rows.
    Returns: exit code.
    Raises: ConfigError, SpecError; a bad row gives one line.
    Effects: reads the rows, prints, writes the profile.
    """
    source, out = Path(arguments.fit), Path(arguments.out) if arguments.out else None
    if out is not None and out.suffix != ".toml":
        raise ConfigError(f"--out {out}: the profile's name must end in .toml")
    engine = cost.engine
    if engine is not None and not any(phase and phase.stated for phase in (engine.decode, engine.prefill)):
        raise ConfigError(f"--fit keeps what --engine states by hand, but {engine.name} states nothing: leave it out")
    name = (out or source).stem
    measured = measured_rows(source, arguments.dies, cost.device.die.per_npu, flag="--fit")
    found = fit_engine(cost, measured.rows, name=name, title=measured.title or f"fitted to {source.name}")
    if out is not None:
        try:
            out.write_text(engine_text(found.profile), encoding="utf-8")
        except OSError as error:
            raise NotWrittenError(f"--out {out} cannot be written: {error.strerror}") from error
    if arguments.json:
        print(json.dumps(_as_json(found), indent=2))
        return 0
    console = table_console()
    own = cost.device.name == OWN_DEVICE
    for phase in found.phases:
        _show(phase, "what CloudMatrix-Infer needs on this device" if own else "the values of the device file")
    for kind in sorted({"decode", "prefill"} - {phase.kind for phase in found.phases}):
        whose = "CloudMatrix-Infer" if own else "the device file"
        console.print(f"\nno row of {kind}: its steps remain those of {whose}, and count as not checked")
    if out is not None:
        console.print(f"\nwrote {out}: use it with --engine {out}", highlight=False, soft_wrap=True)
    return 0


def _show(found: PhaseFit, base: str) -> None:
    phase, console = found.phase, table_console()
    counts = ((phase.rows, "row"), (phase.parameters, "parameter"), (found.degrees, "degree"))
    rows, parameters, degrees = (f"{n} {word}{'s' * (n != 1)}" for n, word in counts)
    console.print(f"\n[bold]{found.kind}[/bold]: {rows}, {parameters}, {degrees} of freedom")
    console.print(
        f"  a step takes {phase.work:.4g} x {base} + {phase.step_s * 1e3:.3g} ms + {phase.token_s * 1e6:.3g} us a token"
        f"{', besides what --engine states' * phase.stated}"
    )
    table = plain_table("row", ">measured", ">predicted", ">error", ">left out", "source")
    for one in found.rows:
        table.add_row(
            one.row.place,
            f"{one.measured_s * 1e3:,.4g} ms",
            f"{one.predicted_s * 1e3:,.4g} ms",
            percent(one.error),
            percent(one.left_out),
            one.row.source,
        )
    console.print(table)
    if not found.degrees:
        console.print("  no row is left to judge the fit by: add a second one", style="yellow")
    console.print(f"  expect within {100 * phase.expected_error:.3g} % inside of {fitted_region(phase)}")
    points = [quantity(one) for one in phase.region if one.low == one.high]
    if points:
        console.print(f"  any other {', '.join(points)} is extrapolation: there are no measurements")


def _as_json(found: EngineFit) -> dict[str, Any]:
    return {
        "engine": asdict(found.profile),
        "fits": [
            {
                "phase": phase.kind,
                "degrees_of_freedom": phase.degrees,
                "rows": [
                    {
                        "row": one.row.place,
                        "measured_s": one.measured_s,
                        "predicted_s": one.predicted_s,
                        "error": one.error,
                        "left_out_error": one.left_out,
                    }
                    for one in phase.rows
                ],
            }
            for phase in found.phases
        ],
    }


# `cloudmatrix cost --judge`: an engine's predictions for measured steps outside its fit, each with its error.

_QUANTITIES = {"tpot_ms": ("TPOT {:,.3g} ms", 1), "step_ms": ("step {:,.4g} ms", 1)}
_RATE = ("{:,.0f} tokens/s a NPU", -1)


def judge_file(cost: CostModel, arguments: argparse.Namespace) -> int:
    """Predict the measured steps of `--judge`; print the error of each next to the error that the model expects.

    Args:
        cost: cost model with the rows' device and model, and the engine that is judged.
    Returns: exit code, 0.
    Raises: ConfigError, SpecError; for a bad row the message is one line.
    Effects: reads the file, prints.
    """
    source, per_npu = Path(arguments.judge), cost.device.die.per_npu
    rows = judge(cost, measured_rows(source, arguments.dies, per_npu, flag="--judge").rows)
    if arguments.json:
        print(json.dumps([_judged_as_json(one) for one in rows], indent=2))
        return 0
    console = table_console()
    console.print(f"engine: {engine_text_of(cost)}", highlight=False)
    table = plain_table("row", ">measured", ">predicted", ">error", ">expected", "source")
    for one in rows:
        expected = f"within {100 * one.trust.error:.0f} %"
        measured, predicted = _quantities(one)
        missed = "" if one.held else " !"
        table.add_row(_place(one), measured, predicted, percent(one.error) + missed, expected, one.row.source)
    console.print(table)
    worst = max(rows, key=lambda one: abs(one.error))
    console.print(
        f"{sum(one.held for one in rows)} of {len(rows)} rows within their stated error; the largest "
        f"error is {percent(worst.error)}, of {_place(worst)}",
        highlight=False,
    )
    return 0


def _place(one: JudgedRow) -> str:
    """File and line, without folders."""
    return one.row.place.rpartition("/")[2]


def _quantities(one: JudgedRow) -> tuple[str, str]:
    """Measured and predicted value in the row's own unit; the error of a rate is the inverse of a time's."""
    name = next(key for key in ("tpot_ms", "step_ms", "tokens_per_s_per_npu") if key in one.row.values)
    text, power = _QUANTITIES.get(name, _RATE)
    value = one.row.values[name]
    return text.format(value), text.format(value * (one.predicted_s / one.measured_s) ** power)


def _judged_as_json(one: JudgedRow) -> dict[str, object]:
    return {
        "row": one.row.place,
        "measured_s": one.measured_s,
        "predicted_s": one.predicted_s,
        "error": one.error,
        "expected_error": one.trust.error,
        "held": one.held,
        "source": one.row.source,
    }


# Rows for `cost --fit` and `cost --judge` from runs of `loadgen`: one of decode per run, and one of prefill if usable.
#
# Client-side measurements of an engine: the time per token of sequences that decode together, and the time to first
# token of requests without a queue. The latter includes gateway and handoff, which become a fixed time per step.

RESULT = "result.json"
REQUESTS = "requests.jsonl"
"""Files of a run's folder; see `loadgen/run_folder.py`."""
LEAST_TOKENS = 8
"""Fewest tokens of a response that is usable for decode."""
GATEWAY_S = SimulationConfig().gateway_s
"""Virtual time adds it to each request [s], so that no step contains it."""
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
    """Time to first token, less `GATEWAY_S` but at least half, of requests that had the instance to themselves."""
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
    first_s = median(record.chunk_times_s[0] - (record.started_s or 0.0) for record in alone)
    values = {
        "dies": float(dies),
        "tokens_per_die": fmean(prompts) * (1 - cached) / dies,
        "prompt_tokens": fmean(prompts),
        "cached_share": cached,
        "step_ms": 1e3 * max(first_s - GATEWAY_S, first_s / 2),
    }
    return [MeasuredRow(f"{folder}: prefill", "prefill", values, folder.name)]


# Plain tables of `cloudmatrix cost`.


def plain_table(*columns: str) -> Table:
    """A table without lines; columns whose name starts with ">" are numbers."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    for column in columns:
        number = column.startswith(">")
        table.add_column(column.removeprefix(">"), justify="right" if number else "left", no_wrap=number)
    return table
