"""Memory servers beside instances, and waits for what the instances store there."""

from serving.ids import SequenceId
from serving.values.orders import Cancel
from tests.kvpool.pool_cluster import PoolCluster
from tests.live.harness import SECRET, Pools, until

MIB = 1 << 20


def memory(servers: int = 2, **settings: object) -> PoolCluster:
    """Memory servers on the node of the instances."""
    return PoolCluster(servers, **{"node": "node", "secret": SECRET, "capacity_bytes": 32 * MIB, **settings})


async def stored(pools: Pools) -> None:
    """Wait until every full block has been offered to the pool."""
    for _ in range(2):
        await turned(pools)  # commands of the last step are sent in the next turn
        await until(lambda: all(i.engine.snapshot(0.0).storing_blocks == 0 for i in pools.instances), "all is stored")


async def turned(pools: Pools) -> None:
    """Wait until every engine has had a turn."""
    before = [instance.loop._last_turn for instance in pools.instances]
    for instance in pools.instances:
        instance.loop.post(Cancel(SequenceId("nobody")))
    await until(
        lambda: all(i.loop._last_turn > last for i, last in zip(pools.instances, before, strict=True)),
        "every engine has had a turn",
    )
