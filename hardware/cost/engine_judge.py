"""Judges an engine's profile by measured steps that it was not fitted to."""

from collections.abc import Sequence
from dataclasses import dataclass

from hardware.cost.cost_model import CostModel
from hardware.cost.engine_fit import measured_step
from hardware.cost.measured_file import MeasuredRow
from hardware.cost.trust import Trust, decode_trust, prefill_trust


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
    def held(self) -> bool | None:
        """Whether the stated error contains the real one; None = none was stated."""
        return None if self.trust.error is None else abs(self.error) <= self.trust.error


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
