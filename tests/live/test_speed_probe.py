"""A start measures its decode speed without leaving state."""

from dataclasses import replace
from pathlib import Path

import pytest

from serving.config.simulation import Executor
from serving.errors import EngineError
from serving.ids import BlockId
from serving.instance.live.compute_model import ENOUGH_S, probed_tokens_per_s
from tests.fakes.executor import FakeExecutor
from tests.live.harness import Pools, small_config


class Clock:
    """Advances by the declared duration of each step."""

    def __init__(self, first_s: float, step_s: float) -> None:
        self._marks = iter([0.0, *(first_s + step_s * count for count in range(1_000))])

    def __call__(self) -> float:
        return next(self._marks)


@pytest.mark.parametrize(
    ("first_s", "step_s", "rate"),
    [(0.05, 0.01, 100.0), (2.0, 0.5, 0.5), (ENOUGH_S, 0.1, 10.0)],
    ids=["the cold first step does not count", "a slow step is the only one", "the last one"],
)
def test_steps_a_second(first_s: float, step_s: float, rate: float) -> None:
    assert probed_tokens_per_s(FakeExecutor(4, 16), (BlockId(0),), 16, Clock(first_s, step_s)) == pytest.approx(rate)


def test_an_executor_that_refuses_has_no_speed() -> None:
    executor = FakeExecutor(4, 16)
    executor.fail_next = EngineError("out of memory")
    assert probed_tokens_per_s(executor, (BlockId(0),), 16) is None


@pytest.mark.asyncio
async def test_an_instance_announces_what_computes_and_how_fast(checkpoint: Path, shm: Path) -> None:
    config = small_config(checkpoint)
    choices: tuple[tuple[Executor, str], ...] = (("auto", "native step, "), ("torch", "torch on the CPU"))
    for executor, name in choices:
        async with Pools(replace(config, engine=replace(config.engine, executor=executor)), shm) as pools:
            instance = await pools.add("decode")
            facts = instance.facts()
            assert facts["computes"].startswith(name)
            assert facts["probe_tokens_per_s"] > 0
            assert facts["steps_total"] == facts["kv_blocks_used"] == facts["busy_s"] == 0, "it counts nowhere"
