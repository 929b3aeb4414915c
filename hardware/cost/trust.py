"""How far a prediction can be off: one rule from device, model, engine and the region of the measured steps.

Inside of the measured steps: as far as rows were off that the fit did not see. Outside: more with each doubling away
from them. Without measurements: as far as its neighbours' rows were off, see `checked`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from hardware.cost.attention import GroupedAttentionSizes
from hardware.cost.calibrate import has_rows
from hardware.cost.checked import OF_GPUS, StepClass, attention_kind, checked_rows, stated
from hardware.cost.cost_model import CostModel
from hardware.cost.device_file import device_names, load_device
from hardware.cost.device_model import DeviceModel
from hardware.cost.engine_profile import OWN_ENGINE, EnginePhase, EngineProfile, FittedRange, load_engine
from hardware.cost.model_shape import DEEPSEEK_R1, ModelShape
from hardware.cost.published import published_halves
from hardware.cost.weight_format import FP8, W8A8, ModelFormats

OWN_DEVICE = "ascend-910c"
JUST_OUTSIDE = 0.10
"""Expected error next to the fitted region; inside of a badly fitted region 5 % more than its own error."""
PER_DOUBLING = 0.04
"""Added for each doubling of a quantity away from its range, and for each draft more.

Source: the largest left-out error of the published rows, 5.1 % for the smallest batch at a third of the next one.
"""
LEAST_STEP = 0.05
"""Added as soon as anything is outside of its range."""
MOST_ERROR = 1.0
"""Above it no number is given."""
_HALVED = FittedRange("half batches at batch", 24, 128)
"""Published batches of two halves."""
_ROUNDING = 1e-9
_MEASURED_FORMATS = (ModelFormats(W8A8, W8A8), ModelFormats(FP8, FP8))
"""Formats of the rows that were fitted: INT8 on Ascends, FP8 on GPUs."""
_NAMES = {
    "batch_per_npu": "batch",
    "context_tokens": "context",
    "tokens_per_die": "new tokens per die",
    "prompt_tokens": "prompts",
    "cached_share": "cached share",
}


@dataclass(frozen=True, slots=True)
class Trust:
    """How far one predicted time can be off.

    Attributes:
        error: relative error to expect.
        text: the same for a person, with the reason.
    """

    error: float
    text: str


def engine_text_of(cost: CostModel) -> str:
    """Engine for which the times of a model are valid, for reports."""
    if cost.engine is not None and cost.engine.name != OWN_ENGINE:
        return f"{cost.engine.name}: {cost.engine.title}"
    if cost.device.name == OWN_DEVICE:
        return "CloudMatrix-Infer itself; open engines need more, see --engine"
    return "those whose published rows the device file was fitted to; others need more, see --engine"


def model_trust(shape: ModelShape, engine: EngineProfile | None = None) -> str:
    """Caveat for the times of a model, for reports; empty for a model that was fitted."""
    like_r1 = replace(shape, name=DEEPSEEK_R1.name, formats=DEEPSEEK_R1.formats) == DEEPSEEK_R1
    of = DEEPSEEK_R1.name if engine is None else engine.model
    if like_r1 if of == DEEPSEEK_R1.name else of == shape.name:
        return _formats_trust(shape, engine)
    if engine is not None and engine.name != OWN_ENGINE:
        return f"not checked: {engine.name} was measured with {engine.model}, not with {shape.name}"
    if isinstance(shape.attention, GroupedAttentionSizes):
        return "not checked: no published row of grouped attention was fitted"
    return "not checked: all published rows are of DeepSeek-R1"


def _formats_trust(shape: ModelShape, engine: EngineProfile | None) -> str:
    """Caution with formats that were not measured; empty for those that were."""
    measured = [one.text for one in _MEASURED_FORMATS]
    if engine is not None and engine.formats:
        measured = [engine.formats]
    if shape.formats.text in measured:
        return ""
    return f"not checked: no row of {shape.formats.text} was fitted, but of {' and of '.join(measured)}"


def decode_trust(
    cost: CostModel,
    batch: float,
    context: float,
    drafts: int = 1,
    *,
    dies: int = 320,
    microbatch: bool | None = None,
) -> Trust:
    """How far the time of a decode step can be off.

    Args:
        batch: sequences per NPU; context: tokens of each.
        microbatch: whether the step runs as two half batches; None = it is not known.
    Effects: reads files of the device and of the engine.
    """
    values = {"batch_per_npu": batch, "context_tokens": context, "drafts": drafts, "dies": dies}
    own = cost.engine is None or cost.engine.name == OWN_ENGINE
    if not own or microbatch is None:
        return _trust(cost, "decode", values)
    if microbatch:
        return _trust(cost, "decode", values | {_HALVED.name: batch}, (_HALVED,))
    return _trust(cost, "decode", values, slower=published_halves(batch))


def prefill_trust(
    cost: CostModel, tokens_per_die: float, prompt: float, *, dies: int = 32, reuse: float = 0.0
) -> Trust:
    """How far the time of a prefill step can be off.

    Args:
        tokens_per_die: to be computed, cached ones left out.
        reuse: share of each prompt that is cached.
    Effects: reads files of the device and of the engine.
    """
    values = {"tokens_per_die": tokens_per_die, "prompt_tokens": prompt, "dies": dies, "cached_share": reuse}
    return _trust(cost, "prefill", values)


def expected(cost: CostModel) -> str:
    """Error to expect of both kinds of steps where they were measured, before any load is known; or why none is known.

    Effects: reads files of the device and of the engine.
    """
    engine = cost.engine or _own_engine()
    texts = []
    for kind in ("decode", "prefill"):
        phase: EnginePhase | None = getattr(engine, kind)
        caution = _cautions(cost, kind)
        if caution or phase is None:
            texts.append(f"{kind}: {_by_neighbours(cost, kind, caution).text}")
        else:
            texts.append(f"{kind}: within {_percent(phase.expected_error)} inside of {fitted_region(phase)}")
    return "; ".join(texts)


def mixed_trust(decode: Trust, prefill: Trust) -> Trust:
    """How far a step that does both can be off."""
    error = max(decode.error, prefill.error)
    derived = "no such step has been published: derived from one of each kind"
    return Trust(error, f"{derived}; expect within {_percent(error)}, the wider of both")


def npus_text(decode: Trust, prefill: Trust, decode_npus: int, prefill_npus: int) -> str:
    """How far a number of NPUs can be off: each pool as far as its steps are, since pools grow with their steps."""
    npus = decode_npus + prefill_npus
    error = (decode.error * decode_npus + prefill.error * prefill_npus) / npus
    low, high = math.floor(npus / (1 + error)), math.ceil(npus * (1 + error))
    return f"NPUs: within {_percent(error)}, {low:,} to {high:,}"


def both_trusts(decode: Trust, prefill: Trust) -> str:
    """Both kinds of steps in one line, for reports of whole systems."""
    if decode.text == prefill.text:
        return decode.text
    return f"decode: {decode.text}; prefill: {prefill.text}"


def fitted_region(phase: EnginePhase) -> str:
    """Where steps of a kind were measured, for a person."""
    return ", ".join(
        f"{quantity(one)} {_range(one)}{' per NPU' * (one.name == 'batch_per_npu')}" for one in phase.region
    )


def quantity(one: FittedRange) -> str:
    """Name of a region's quantity, for a person."""
    return _NAMES.get(one.name, one.name)


def _trust(
    cost: CostModel,
    kind: str,
    values: dict[str, float],
    more: tuple[FittedRange, ...] = (),
    *,
    slower: bool = False,
) -> Trust:
    """The rule.

    Args:
        more: ranges besides the profile's.
        slower: the published engine does not choose the faster form here.
    """
    caution = _cautions(cost, kind)
    phase: EnginePhase | None = getattr(cost.engine or _own_engine(), kind)
    if caution or phase is None:
        return _by_neighbours(cost, kind, caution)
    by_hand = "; the profile's host, graphs and sampling are stated, no row measured them" if phase.stated else ""
    region = (*_of_full_steps(phase.region, values), *more)
    outside = [one for one in region if _away(one, values[one.name])]
    if not outside:
        note = "; the published engine has half batches here, which --microbatch predicts" if slower else ""
        inside = f"expect within {_percent(phase.expected_error)}, inside of what was fitted: {fitted_region(phase)}"
        return Trust(phase.expected_error, inside + note + by_hand)
    doublings = sum(_away(one, values[one.name]) for one in outside)
    error = max(JUST_OUTSIDE, phase.expected_error + LEAST_STEP) + PER_DOUBLING * doublings
    named = [f"{quantity(one)} {_number(values[one.name])}, not {_range(one)}" for one in outside]
    return Trust(error, f"expect within {_percent(error)}, outside of what was fitted: {'; '.join(named)}{by_hand}")


def _cautions(cost: CostModel, kind: str) -> str:
    """Reasons why the engine's own rows say nothing of a kind of steps; empty if they do."""
    engine = cost.engine or _own_engine()
    caution = model_trust(cost.shape, cost.engine) or _caution(cost.device, cost.engine)
    if not caution and getattr(engine, kind) is None:
        caution = _unknown(kind, engine)
    division = getattr(cost, kind).parallelism.caution
    if not division:
        return caution
    return f"{caution}; {division}" if caution else f"not checked: {division}"


def _by_neighbours(cost: CostModel, kind: str, caution: str) -> Trust:
    """The error of rows of the same class, or of neighbours; see `checked`."""
    known = cost.device.name in device_names() and load_device(cost.device.name) == cost.device
    engine = OWN_ENGINE if cost.device.name.startswith("ascend") else OF_GPUS
    asked = StepClass(
        kind,
        cost.device.name if known else "",
        attention_kind(cost.shape),
        engine if cost.engine is None else cost.engine.name,
    )
    another = cost.engine is not None and cost.engine.name != OWN_ENGINE  # its rows are of several models and formats
    like_rows = another or not model_trust(cost.shape, cost.engine)
    like_rows = like_rows and not getattr(cost, kind).parallelism.caution
    found = stated(asked, checked_rows(), like_rows=like_rows)
    text = f"expect within {_percent(found.error)}, {found.why}"
    return Trust(found.error, text if not found.neighbours else f"{caution}; {text}")


def _unknown(kind: str, engine: EngineProfile) -> str:
    return f"not checked: no {kind} step of {engine.name} is known, the device file's is used"


def _caution(device: DeviceModel, engine: EngineProfile | None) -> str:
    """Reason why an engine's rows are not evidence for a device; empty if there is none."""
    shipped = device.name in device_names()
    changed = shipped and load_device(device.name) != device
    if engine is not None and engine.name != OWN_ENGINE:
        if changed or engine.device != device.name:
            return f"not checked: {engine.name} was measured on {engine.device}, not on this device"
        return ""
    if changed or not shipped or not has_rows(device):
        return "not checked: nothing was published for this model on this device"
    if device.name == OWN_DEVICE:
        return ""
    return "fitted to a few published rows, see --calibrate"


@lru_cache(maxsize=1)
def _own_engine() -> EngineProfile:
    return load_engine(OWN_ENGINE)


def _of_full_steps(region: Sequence[FittedRange], values: dict[str, float]) -> list[FittedRange]:
    """Ranges of a step of which part is cached: a full one is smaller for that."""
    computed = 1 - values.get("cached_share", 0.0)
    return [
        replace(one, low=min(one.low, one.high * computed), high=one.high * computed)
        if one.name == "tokens_per_die"
        else one
        for one in region
    ]


def _away(one: FittedRange, value: float) -> float:
    """Doublings from the nearest end of a range, drafts counted one by one; 0 inside."""
    if one.low * (1 - _ROUNDING) <= value <= one.high * (1 + _ROUNDING):
        return 0.0
    end = one.low if value < one.low else one.high
    if one.name == "drafts":
        return abs(value - end)
    if one.name == "cached_share":
        value, end = 1 - value, 1 - end
    return abs(math.log2(value / end)) if value > 0 and end > 0 else math.inf


def _percent(error: float) -> str:
    if error > MOST_ERROR:
        return f"more than {MOST_ERROR:.0%}".replace("%", " %")
    return f"{math.ceil(100 * error - 1e-6)} %"


def _range(one: FittedRange) -> str:
    low, high = _number(one.low), _number(one.high)
    return low if low == high else f"{low} to {high}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1_000 else f"{value:,.10g}"
