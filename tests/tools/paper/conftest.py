"""One quick reproduction of all experiments, for all tests that inspect rows."""

import pytest

from serving.tools.paper.experiment import Setting
from serving.tools.paper.registry import EXPERIMENTS
from serving.tools.paper.reproduction import Reproduction, reproduce


@pytest.fixture(scope="session")
def setting() -> Setting:
    return Setting(quick=True)


LONG = "xds-production"
"""Takes longer than all others together: simulated nightly."""


@pytest.fixture(scope="session")
def everything(setting: Setting, request: pytest.FixtureRequest) -> Reproduction:
    """All experiments; without `LONG` where nightly tests are left out."""
    nightly = "not nightly" not in request.config.option.markexpr
    return reproduce([one for one in EXPERIMENTS if nightly or one.name != LONG], setting)
