"""What tests of a plan's choices share."""

import pytest

from hardware.cost import CostModel
from serving.virtual.simulation import cost_model
from tests.tools.planning.traces import config


@pytest.fixture(scope="module")
def cost() -> CostModel:
    """The cost model of the configuration that plans start with."""
    return cost_model(config())
