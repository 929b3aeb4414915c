"""Block clipping: eq. 4."""

import pytest
import torch

from serving.tools.quantize.clipping import RATIOS, clipped_range, clipping_error
from serving.tools.quantize.rounding import channel_range
from tests.tools.quantize.matrices import weight_and_inputs


@pytest.mark.parametrize("seed", range(4))
def test_no_channel_is_worse_than_unclipped_or_than_any_ratio(seed: int) -> None:
    weight, inputs = weight_and_inputs(seed, tokens=300)
    found = clipping_error(weight, clipped_range(weight, inputs), inputs)
    for ratio in (1.0, *RATIOS):
        assert (found <= clipping_error(weight, channel_range(weight) * ratio, inputs)).all()


def test_a_lone_outlier_that_matters_little_is_clipped() -> None:
    weight, inputs = weight_and_inputs()
    weight[0, 1] = 3.0
    inputs[:, 1] *= 1e-3
    assert clipped_range(weight, inputs)[0] < 3.0


def test_without_inputs_nothing_is_clipped() -> None:
    weight, _ = weight_and_inputs()
    assert torch.equal(clipped_range(weight, torch.zeros(0, 64)), channel_range(weight))
