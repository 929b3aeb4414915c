"""Attention and experts on different dies: xDeepServe's iteration, its feasibility rule, and what bounds it."""

import pytest

from hardware.cost import CostModel, mtp_tokens_per_step
from hardware.cost.disaggregated import DisaggregatedStep, disaggregated_decode_step
from hardware.errors import SpecError


def measured(model: CostModel, domains: int = 3) -> DisaggregatedStep:
    """With the published stage times."""
    return disaggregated_decode_step(
        model, requests=96, context_tokens=96 * 3072, domains=domains, attention_s=0.7e-3, experts_s=0.12e-3
    )


def test_the_published_formula(model: CostModel) -> None:
    step = measured(model)
    assert step.total_s == pytest.approx(92.9e-3, rel=0.002)
    assert step.tpot_s(mtp_tokens_per_step(1, 0.9)) == pytest.approx(49e-3, rel=0.005)
    assert step.send_s == pytest.approx(172e-6)
    assert step.return_s == pytest.approx(193e-6)


def test_three_domains_keep_up_and_four_do_not(model: CostModel) -> None:
    assert measured(model).bound == "attention"
    four = measured(model, domains=4)
    assert four.bound == "experts"
    assert four.total_s > measured(model).total_s


def test_the_model_s_own_stages(model: CostModel) -> None:
    step = disaggregated_decode_step(model, requests=96, context_tokens=96 * 3072)
    assert step.attention_s == pytest.approx(0.7e-3, rel=0.18)
    assert step.experts_s == pytest.approx(0.12e-3, rel=0.5)
    longer = disaggregated_decode_step(model, requests=96, context_tokens=96 * 6144)
    assert longer.attention_s > step.attention_s
    assert longer.experts_s == step.experts_s, "experts do not see the context"


@pytest.mark.parametrize("wrong", [{"domains": 0}, {"domains": 7}, {"expert_dies": 0}, {"attention_dies": 0}])
def test_impossible_layouts(model: CostModel, wrong: dict[str, int]) -> None:
    with pytest.raises(SpecError, match="impossible"):
        disaggregated_decode_step(model, requests=96, context_tokens=96, **wrong)
