"""The same with simulated instances: predicted time instead of computed tokens, the same engines, the same logs."""

import asyncio
import random
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from hardware.topology import NpuId
from serving.config.load import load_config
from serving.config.serve import ServeConfig
from serving.ids import ReplicaId
from serving.instance.live.instance import Instance, InstancePlace
from serving.tools.replay import replay
from serving.values.decision_log import SUFFIX
from serving.values.sequence import SamplingParams
from tests.instance.decision_logs import gateway_kinds
from tests.live.harness import SECRET, Member, Pools
from tests.live.workload import Ask, tokens

LIVE = Path(__file__).parents[2] / "deploy" / "cloudmatrix384-live.toml"


class SimulatedPools(Pools):
    """Instances with the configured number of NPUs."""

    async def add(self, pool: str, *, listed: bool = True) -> Instance:
        number, node = len(self.instances), self._nodes[0]
        npus = tuple(
            NpuId(host, slot) for host in range(self.config.pools[pool].npus_per_instance // 8) for slot in range(8)
        )
        path = self._folder / f"ub-{number}"
        place = InstancePlace(ReplicaId(f"{pool}#{number}"), pool, node, npus, path, "127.0.0.1", threads=1)
        instance = Instance(self.config, place, SECRET, self._pool_view)
        host, port = await instance.start()
        self.instances.append(instance)
        self.members[place.replica] = Member(place.replica, pool, node, host, port)
        return instance


def simulated(folder: Path) -> ServeConfig:
    """The shipped system, ten times as fast, with one prefill instance and no pool."""
    config = load_config(LIVE)
    return replace(
        config,
        engine=replace(config.engine, decision_log=str(folder)),
        simulation=replace(config.simulation, time_scale=10.0),
        kvcache=replace(config.kvcache, replicas=0),
    )


@pytest.mark.nightly("tests/contract/test_decision_replay.py::test_every_decision_is_made_again")
def test_a_simulated_system_decides_the_same_again(tmp_path: Path, shm: Path) -> None:
    rng = random.Random(4)
    shared = tokens(rng, 2_000)
    asks = [
        Ask((*shared, *tokens(rng, rng.randrange(1, 900))), SamplingParams(max_tokens=rng.randrange(2, 40), seed=seed))
        for seed in range(40)
    ]

    async def life() -> int:
        async with SimulatedPools(simulated(tmp_path / "logs"), shm) as pools:
            await pools.start("prefill", "decode")
            told = await asyncio.gather(*(pools.ask(one) for one in asks))
            return sum(len(choice) for answer in told for choice in answer.tokens)

    assert asyncio.run(life()) > 100
    found = [replay(path) for path in sorted((tmp_path / "logs").iterdir())]
    assert [(result.name, result.difference, result.ending) for result in found] == [
        ("decode#1", None, ""),
        ("prefill#0", None, ""),
        ("gateway", None, ""),
    ]
    seen = sum((Counter(result.calls) for result in found), Counter[str]())
    told = gateway_kinds((tmp_path / "logs" / f"gateway-gateway{SUFFIX}").read_bytes())
    assert seen["PullDone"] == told["Prefilled"] == told["Adopted"] == 40
