"""Published steps of other models, engines and devices: sparse attention, 4-bit experts, H20 and H200."""

from hardware.cost import CostModel
from hardware.cost.published import PublishedRow
from hardware.cost.published_systems import AFD_FITTED, CANN_FITTED, CANN_SEEN, H20_FITTED, PREDICTED
from serving.tools.paper.experiment import Experiment, Findings, How, Row, Setting

_UNITS = {"ms": "ms, TPOT", "tok/s": "tok/s of an NPU"}


def run_other_systems(setting: Setting) -> Findings:
    """Each row by the cost model of its own device and model, with its engine's kernels."""
    rows = [_row(row, setting.cost) for row in (*CANN_FITTED, *CANN_SEEN, *AFD_FITTED, *H20_FITTED, *PREDICTED)]
    return Findings(
        rows,
        (
            "Six rows decide one constant each: starts of the indexer's kernels, in the CANN recipes and in "
            "vllm-ascend; reads of 4-bit weights; element-wise work of prompts on dies of their own; least time of "
            "exchanges between nodes, and of draft passes, on the H20. No constant was fitted to the other rows. Core "
            "attention of the CANN recipes is AMLA's, as published; the H20's efficiencies are measurements of single "
            "kernels.",
            "No constant was chosen by a predicted row, but forms of terms were: that an exchange between nodes has a "
            "least time, that a draft pass waits for the host, and that element-wise work follows a model's widths was "
            "decided while rows of the H20 were off.",
            "Where a source is silent, 70 % of drafts hold. Where experts were forced to be even (the CANN "
            "recipes and the afd-plugin), ours are, too.",
        ),
    )


def _row(row: PublishedRow, cost: CostModel) -> Row:
    unit = _UNITS[row.unit]
    return Row(row.name, row.name, row.published, row.predict(cost), unit, How.MODEL, row.source, row.kind)


OTHER_SYSTEMS = Experiment(
    "other-systems", "Other models and engines", "the cost model, with each engine's own kernels", run_other_systems
)
