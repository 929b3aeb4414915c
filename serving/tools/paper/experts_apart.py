"""Attention apart from experts against expert parallelism on the same chips: the afd-plugin's measurements."""

from dataclasses import replace

from hardware.cost import CostModel, DecodeLoad
from hardware.cost.engine_profile import load_engine
from hardware.cost.parallelism import WHOLE, Parallelism
from hardware.cost.published import RowKind
from hardware.cost.published_systems import AFD, DEEPSEEK_V32
from hardware.cost.weight_format import ModelFormats
from serving.tools.paper.experiment import Experiment, Findings, How, Row, Setting

_SHAPE = replace(DEEPSEEK_V32, formats=ModelFormats())
_EXPERT_DIES, _ANSWER = 64, 512
"""Mean context: the prompt and half of an answer of 512 to 1,536 tokens."""
_MEASURED = ((16, 16_384, 28, 232.6, {3: 220.3, 4: 258.9}), (8, 32_768, 14, 168.2, {3: 151.4, 4: 183.3}))
"""Sequences a die, prompt, sequences an attention die; tokens/s of a die: of EP64, and apart, by attention dies per
expert die."""


def _step_ms(setting: Setting, dies: int, sequences: int, prompt: int, division: Parallelism) -> float:
    """One step; two half batches where experts are apart, as dual batch overlap is on, and none in EP64."""
    cost = CostModel(setting.cost.device, _SHAPE, load_engine("vllm-ascend"), decode=division)
    context = sequences * (prompt + _ANSWER)
    return 1e3 * cost.decode_step_s(DecodeLoad(sequences, context, None, dies, 0, bool(division.expert_dies), 1.0))


def run_apart(setting: Setting) -> Findings:
    """DeepSeek-V3.2 in W8A8: EP64, and 192 or 256 attention dies with 64 expert dies, experts forced to be even."""
    rows = []
    apart = Parallelism(expert_dies=_EXPERT_DIES, domains=1, trampolines="peers")
    for together, prompt, sequences, rate, published in _MEASURED:
        name = f"{prompt // 1024}K"
        base_ms = _step_ms(setting, _EXPERT_DIES, together, prompt, WHOLE)
        if prompt > 16_384:
            rows.append(_row(f"ep-{name}", f"EP64, {name}, TPOT", together / rate * 1e3, base_ms, "ms"))
        for ratio, per_die in published.items():
            share = ratio / (1 + ratio)
            label = f"{ratio * _EXPERT_DIES}A{_EXPERT_DIES}F, {name}"
            dies = (1 + ratio) * _EXPERT_DIES
            step_ms = _step_ms(setting, dies, sequences, prompt, apart)
            gain = sequences * share / step_ms / (together / base_ms)
            measured_ms = sequences * share / per_die * 1e3
            rows.append(_row(f"tpot-{ratio}-{name}", f"{label}, TPOT", measured_ms, step_ms, "ms"))
            rows.append(_row(f"gain-{ratio}-{name}", f"{label}, tokens/s a die over EP64", per_die / rate, gain, "x"))
    note = (
        "Published: tokens/s of a die; TPOT follows from the sequences of a die. Sending and receiving are on an "
        "attention die's own stream, rows go once and in BF16 to one expert die, which dispatches them (`trampolines = "
        '"peers"`): the connector\'s guide says so, but the form was chosen while these rows were known. Attention '
        "sets the pace, so that ours does not depend on the ratio; the published step is 9 % shorter with 4 attention "
        "dies per expert die than with 3, although its experts have a third more rows. At 32K steps with few tokens "
        "are too slow: starts of the indexer's kernels, fitted to EP64 at 16K, do not shrink with the batch."
    )
    return Findings(rows, (note,))


def _row(key: str, label: str, published: float, ours: float, unit: str) -> Row:
    return Row(key, label, published, ours, unit, How.MODEL, AFD, RowKind.FITTED, headline=unit == "x")


APART = Experiment(
    "other-apart", "Attention apart from experts against EP64, DeepSeek-V3.2", "steps of the cost model", run_apart
)
