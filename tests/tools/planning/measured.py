"""One candidate, its target and its setting, for tests that simulate it."""

from pathlib import Path

from serving.tools.planning.candidate import Candidate, Shape
from serving.tools.planning.measure import PlanSetting
from serving.tools.planning.trace import TraceChoice
from serving.tools.planning.verdict import PlanTarget
from tests.tools.planning.traces import config

PLAN = Candidate(Shape(16, 16_384), 2, Shape(64, 48), 1)
TARGET = PlanTarget(2.0, 0.05, 0.95)


def setting(path: Path, target: PlanTarget = TARGET, cache_nodes: int | None = None) -> PlanSetting:
    trace = TraceChoice(path)
    return PlanSetting(config(), trace, trace, target, cache_nodes)
