"""Finds an engine's profile from its measured steps: few parameters, counted, and each row judged by the others.

A step is `work` times the time by the device's calibration, plus a fixed time, plus a time for each token. One row a
kind gives `work` alone. With more rows the fixed times are added where that predicts rows better that were left out.
All of this is linear in relative errors, so that a fit is solved, not searched.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import MISSING, dataclass, fields, replace

import numpy as np

from hardware.cost.cost_model import CostModel, mtp_tokens_per_step
from hardware.cost.engine_profile import DECODE_RANGES, PREFILL_RANGES, EnginePhase, EngineProfile, FittedRange
from hardware.cost.loads import PrefillLoad
from hardware.cost.measured_file import MeasuredRow
from hardware.cost.trust import Trust, decode_trust, prefill_trust
from hardware.cost.weight_format import AS_PUBLISHED
from hardware.errors import SpecError

LEAST_ERROR = 0.05
"""Expected of any profile, however well it meets its rows: that is what the published engine's own rows are met to."""
UNJUDGED_ERROR = {"decode": 0.10, "prefill": 0.15}
"""Expected where no row is left to judge by. Open engines' decode was 4 to 11 % off without any profile, and their
prefill by factors of 2.3 to 2.6, which one number brings to within 7 %; see `hardware/cost/engines`."""
_BETTER = 0.9
"""A further parameter has to bring errors of left-out rows down to this."""
_ROUNDING = 1e-6
_FOUND = ("work", "step_s", "token_s", "rows", "parameters", "expected_error", "region", "source")
"""Keys of a phase that a fit finds; all others are stated by hand."""


@dataclass(frozen=True, slots=True)
class FittedRow:
    """One measured step and what the fit makes of it.

    Attributes:
        measured_s / predicted_s: of the step [s].
        error: relative; left_out: of the fit to all other rows of its kind, None if there is none.
    """

    row: MeasuredRow
    measured_s: float
    predicted_s: float
    error: float
    left_out: float | None


@dataclass(frozen=True, slots=True)
class PhaseFit:
    """Steps of one kind after the fit."""

    kind: str
    phase: EnginePhase
    rows: tuple[FittedRow, ...]

    @property
    def degrees(self) -> int:
        """Rows less parameters."""
        return self.phase.rows - self.phase.parameters


@dataclass(frozen=True, slots=True)
class EngineFit:
    """A whole profile and how it was found."""

    profile: EngineProfile
    phases: tuple[PhaseFit, ...]


@dataclass(frozen=True, slots=True)
class MeasuredStep:
    """One measured step and its time by a cost model.

    Attributes:
        measured_s / base_s: of the step; by the model [s].
        tokens: that the fullest die computes; sequences: on it, 0 in prefill.
        known_s: of the step that the engine's profile states [s].
    """

    row: MeasuredRow
    measured_s: float
    base_s: float
    tokens: float
    sequences: float = 0.0
    known_s: float = 0.0


def fit_engine(cost: CostModel, rows: Sequence[MeasuredRow], *, name: str, title: str) -> EngineFit:
    """Fit a profile.

    Args:
        cost: of the rows' device and model; if it has an engine, stated values are kept and the others fitted again.
        rows: of either kind, or both.
        name, title: of the profile.
    Raises: SpecError for drafts of a model that has none, and for a row that stated times explain alone.
    """
    phases = []
    plain = _without_times(cost)
    for kind in ("decode", "prefill"):
        stated: EnginePhase | None = getattr(cost.engine, kind, None)
        points = [_known(measured_step(plain, row), stated) for row in rows if row.phase == kind]
        if points:
            phases.append(_phase(kind, points, stated))
    found = {phase.kind: phase.phase for phase in phases}
    shape, (decode, prefill) = cost.shape, (found.get(kind) for kind in ("decode", "prefill"))
    formats = "" if shape.formats == AS_PUBLISHED else shape.formats.text
    kernels = cost.engine.kernels if cost.engine is not None else {}
    profile = EngineProfile(name, title, cost.device.name, shape.name, decode, prefill, formats, kernels)
    return EngineFit(profile, tuple(phases))


def _without_times(cost: CostModel) -> CostModel:
    """The model without its engine's times, keeping only captured graphs, which pad its batches."""
    if cost.engine is None:
        return cost
    decode = cost.engine.decode
    if decode is not None:
        blank = {field.name: field.default for field in fields(decode) if field.default is not MISSING}
        blank |= {"graph_batches": decode.graph_batches, "work": 1.0, "step_s": 0.0, "token_s": 0.0}
        decode = replace(decode, **blank)
    engine = replace(cost.engine, decode=decode, prefill=None)
    division = cost.decode.parallelism, cost.prefill.parallelism
    return CostModel(cost.device, cost.shape, engine, decode=division[0], prefill=division[1])


def _known(point: MeasuredStep, stated: EnginePhase | None) -> MeasuredStep:
    """A measured step with the values stated in its engine's profile."""
    if stated is None:
        return point
    host_s = stated.host_s(point.sequences)
    known_s = stated.sampling_sequence_s * point.sequences + stated.eager_s(point.sequences)
    known_s += 0.0 if stated.overlapped else host_s
    if max(known_s, host_s) >= point.measured_s:
        raise SpecError(
            f"{point.row.place}: a step of {point.measured_s * 1e3:.4g} ms, of which the profile states "
            f"{max(known_s, host_s) * 1e3:.4g} ms: it has no information about the device; leave the row "
            "out, or state less"
        )
    return replace(point, known_s=known_s)


def _prefill_load(row: MeasuredRow) -> PrefillLoad:
    """Load of a measured prefill step: equal prompts, each with its cached tokens before the computed ones."""
    dies, cached, prompt = int(row.values["dies"]), row.values["cached_share"], row.values["prompt_tokens"]
    tokens = row.values["tokens_per_die"] * dies
    return PrefillLoad(tokens, tokens * prompt * (1 + cached) / 2, dies, first=prompt * cached)


def measured_step(cost: CostModel, row: MeasuredRow) -> MeasuredStep:
    """Step that a row is of, predicted by a model, with its engine if it has one.

    Raises: SpecError for drafts of a model that has none.
    """
    values, per_npu = row.values, cost.device.die.per_npu
    if row.phase == "decode":
        load = cost.even_load(
            values["batch_per_npu"], values["context_tokens"], dies=int(values["dies"]), drafts=int(values["drafts"])
        )
        step_s = values["tpot_ms"] / 1e3 * mtp_tokens_per_step(load.drafts, values["acceptance"])
        return MeasuredStep(row, step_s, cost.decode_step_s(load), load.requests * (1 + load.drafts), load.requests)
    tokens = values["tokens_per_die"]
    if "step_ms" in values:
        step_s = values["step_ms"] / 1e3
    else:
        step_s = tokens / (1 - values["cached_share"]) * per_npu / values["tokens_per_s_per_npu"]
    return MeasuredStep(row, step_s, cost.prefill_step_s(_prefill_load(row)), tokens)


def _phase(kind: str, points: list[MeasuredStep], stated: EnginePhase | None = None) -> PhaseFit:
    forms: list[tuple[int, ...]] = [(0,), (0, 1), (0, 2), (0, 1, 2)]
    best, left_out = forms[0], _left_out(points, forms[0])
    for form in forms[1:]:
        if len(points) > len(form):
            errors = _left_out(points, form)
            if _mean(errors) + _ROUNDING < _BETTER * _mean(left_out):
                best, left_out = form, errors
    times = _solve(points, best)
    judged = [abs(error) for error in left_out if error is not None]
    expected = max(LEAST_ERROR, *judged) if judged else UNJUDGED_ERROR[kind]
    phase = EnginePhase(
        *times,
        rows=len(points),
        parameters=len(best),
        expected_error=math.ceil(1000 * expected - 1e-9) / 1000,
        region=_region(kind, points),
        source="; ".join(dict.fromkeys(point.row.source or point.row.place for point in points)),
    )
    if stated is not None:
        found = {name: getattr(phase, name) for name in (field.name for field in fields(phase)) if name in _FOUND}
        phase = replace(stated, **found)
    rows = [
        FittedRow(point.row, point.measured_s, predicted, predicted / point.measured_s - 1, without)
        for point, without in zip(points, left_out, strict=True)
        for predicted in (phase.seconds(point.base_s, point.tokens, point.sequences),)
    ]
    return PhaseFit(kind, phase, tuple(rows))


def _region(kind: str, points: list[MeasuredStep]) -> tuple[FittedRange, ...]:
    ranges = []
    for name in DECODE_RANGES if kind == "decode" else PREFILL_RANGES:
        values = [point.row.values[name] for point in points]
        ranges.append(FittedRange(name, min(values), max(values)))
    return tuple(ranges)


def _left_out(points: list[MeasuredStep], form: tuple[int, ...]) -> list[float | None]:
    """Error of each point by the fit to all others; None where there is no other."""
    if len(points) < 2:
        return [None]
    errors: list[float | None] = []
    for at, point in enumerate(points):
        times = _solve(points[:at] + points[at + 1 :], form)
        predicted_s = float(np.dot(times, (point.base_s, 1.0, point.tokens))) + point.known_s
        errors.append(predicted_s / point.measured_s - 1)
    return errors


def _mean(errors: list[float | None]) -> float:
    """Root mean square; 0 without errors, which no fit can beat."""
    known = [error**2 for error in errors if error is not None]
    return math.sqrt(sum(known) / len(known)) if known else 0.0


def _solve(points: list[MeasuredStep], form: tuple[int, ...]) -> tuple[float, float, float]:
    """Times with the smallest squared relative errors, none below zero.

    Args:
        form: which of work, step and token times may be there, by number; the first one always is.
    """
    columns = np.array([(point.base_s, 1.0, point.tokens) for point in points])
    columns /= np.array([[point.measured_s] for point in points])
    wanted = np.array([1 - point.known_s / point.measured_s for point in points])
    found, least = (0.0, 0.0, 0.0), math.inf
    for size in range(len(form)):
        for further in itertools.combinations(form[1:], size):
            used = (0, *further)
            times = np.zeros(3)
            times[list(used)] = np.linalg.lstsq(columns[:, used], wanted, rcond=None)[0]
            loss = float(np.sum((columns @ times - wanted) ** 2))
            if times[0] > 0 and (times >= 0).all() and loss < least:
                found, least = (float(times[0]), float(times[1]), float(times[2])), loss
    return found


# Judges an engine's profile by measured steps that it was not fitted to.


@dataclass(frozen=True, slots=True)
class JudgedRow:
    """One measured step and its prediction.

    Attributes:
        measured_s / predicted_s: of the step [s].
        trust: the prediction's stated error bound.
    """

    row: MeasuredRow
    measured_s: float
    predicted_s: float
    trust: Trust

    @property
    def error(self) -> float:
        """Relative error of the predicted time."""
        return self.predicted_s / self.measured_s - 1

    @property
    def held(self) -> bool:
        """Whether the stated error contains the real one."""
        return abs(self.error) <= self.trust.error


def judge(cost: CostModel, rows: Sequence[MeasuredRow]) -> list[JudgedRow]:
    """Predict measured steps.

    Args:
        cost: of the rows' device and model, with the engine that is judged; without one, CloudMatrix-Infer is.
    Raises: SpecError for drafts of a model that has none.
    Effects: reads files of the device and of the engine.
    """
    return [
        JudgedRow(row, step.measured_s, step.base_s, _trust(cost, row))
        for row in rows
        for step in (measured_step(cost, row),)
    ]


def _trust(cost: CostModel, row: MeasuredRow) -> Trust:
    values = row.values
    dies = int(values["dies"])
    if row.phase == "decode":
        drafts = int(values["drafts"])
        return decode_trust(cost, values["batch_per_npu"], values["context_tokens"], drafts, dies=dies)
    return prefill_trust(
        cost, values["tokens_per_die"], values["prompt_tokens"], dies=dies, reuse=values["cached_share"]
    )
