"""A load, and one candidate with its target and setting, for tests of what is planned."""

from pathlib import Path

import numpy as np

from serving.tools.planning.candidate import Candidate, Shape
from serving.tools.planning.candidate_run import PlanSetting
from serving.tools.planning.trace import PlanDemand, TraceChoice
from serving.tools.planning.verdict import PlanTarget
from tests.tools.planning.traces import config

LOAD = PlanDemand(100.0, np.array([1000] * 20), np.array([100] * 20), np.array([0] * 20), True)
"""Twenty prompts of 1,000 tokens in 100 s, each with an answer of 100."""
PLAN = Candidate(Shape(16, 16_384), 2, Shape(64, 48), 1)
TARGET = PlanTarget(2.0, 0.05, 0.95)


def setting(path: Path, target: PlanTarget = TARGET, cache_nodes: int | None = None) -> PlanSetting:
    trace = TraceChoice(path)
    return PlanSetting(config(), trace, trace, target, cache_nodes)
