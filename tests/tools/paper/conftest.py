"""One quick reproduction of everything, for all tests that look at rows."""

import pytest

from serving.tools.paper.registry import EXPERIMENTS
from serving.tools.paper.reproduction import Reproduction, reproduce
from serving.tools.paper.setting import Setting


@pytest.fixture(scope="session")
def setting() -> Setting:
    return Setting(quick=True)


@pytest.fixture(scope="session")
def everything(setting: Setting) -> Reproduction:
    return reproduce(EXPERIMENTS, setting)
