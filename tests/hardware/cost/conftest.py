"""The shipped Ascend model, and a calibration of it; both are slow and immutable, so all tests share them."""

import pytest

from hardware.cost import CostModel, load_device
from hardware.cost.calibrate import Calibrated, calibrate


@pytest.fixture(scope="session")
def model() -> CostModel:
    return CostModel(load_device("ascend-910c"))


@pytest.fixture(scope="session")
def ascend() -> Calibrated:
    return calibrate(load_device("ascend-910c"))


@pytest.fixture(scope="session")
def h100() -> Calibrated:
    return calibrate(load_device("h100"))


@pytest.fixture(scope="session")
def h800() -> Calibrated:
    return calibrate(load_device("h800"))


@pytest.fixture(scope="session")
def h20() -> Calibrated:
    return calibrate(load_device("h20"))
