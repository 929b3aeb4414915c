"""Events of real instances, and `POST /query`'s answers, against the caches themselves."""

import asyncio
import random
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from serving.config.kvcache import KvCacheConfig
from serving.gateway.core.prefix_hits import PrefixHit
from serving.gateway.live.pool_admin import LivePoolAdmin
from serving.gateway.live.prefix_finder import LivePrefixFinder
from serving.ids import BlockHash, NodeId
from serving.instance.live.instance import Instance
from serving.values.kv_changes import GPU
from serving.values.prefix_hash import prefix_hashes
from tests.fakes.pool_admin import FakePoolAdmin
from tests.kvevents.cases import somewhere
from tests.kvevents.subscriber import SubscriberIndex
from tests.kvevents.zmq_subscriber import ZmqSubscriber
from tests.kvpool.client_case import entries_of
from tests.live.harness import SECRET, Pools, small_config
from tests.live.pool_waits import memory, stored
from tests.live.workload import Ask, Reference, tokens

pytestmark = pytest.mark.asyncio


def cached(instance: Instance) -> set[BlockHash]:
    with instance.loop._lock:
        return set(instance.engine.scheduler.blocks.pool._block_of)


async def test_subscribers_and_queries_know_every_cache(checkpoint: Path, reference: Reference, shm: Path) -> None:
    config = small_config(checkpoint, mode="aggregated", pool_mib=1)
    events = somewhere(publishers=200, hashes="bytes", replay="")
    events = replace(events, replay=f"tcp://127.0.0.1:{int(events.endpoint.rpartition(':')[2]) + 200}")
    pool = KvCacheConfig(replicas=1, get_timeout_s=20.0, put_timeout_s=20.0)
    config = replace(config, kv_events=events, kvcache=pool)
    chance = random.Random(3)
    asks = [Ask(tokens(chance, chance.randrange(40, 200))) for _ in range(24)]
    with memory(1) as servers:
        async with Pools(config, shm, pool_view=servers.view) as pools:
            await pools.start("aggregated", "aggregated")
            for told, ask in zip(await asyncio.gather(*map(pools.ask, asks)), asks, strict=True):
                assert told.tokens == reference.outputs(ask)
            await stored(pools)
            for instance in pools.instances:
                facts, known = instance.facts()["kv_events"], cached(instance)
                with ZmqSubscriber(facts["endpoint"], facts["replay"]) as follower:
                    index = await asyncio.to_thread(follower.until, partial(_has, known))
                    assert {tokens for _, tokens in index.tokens.values()} <= _blocks_of(asks, reference)
            admin = LivePoolAdmin("test", NodeId("node"), SECRET, servers.view, FakePoolAdmin(servers.view()))
            finder = LivePrefixFinder(pools.backend.links, admin, 16)
            (server,), client = servers.view().servers, servers.client("node", SECRET)
            in_pool = {entry.hash for entry in await asyncio.to_thread(entries_of, client, server.record.name)}
            assert len(in_pool) > len(asks), "not all blocks: an instance under load stores only some of a prompt's"
            for ask in asks:
                hashes = prefix_hashes(ask.prompt, 16)
                assert await finder.find("default", hashes) == _expected(pools, in_pool, hashes)
            assert await finder.find("default", ()) == [PrefixHit(f"aggregated#{n}", 0, 0, 0, 0, 0) for n in range(2)]
            assert all(hit.cpu == 0 for hit in await finder.find("acme", hashes))
            servers.kill(0, listed=True)
            assert [hit.cpu for hit in await finder.find("default", hashes)] == [0, 0]


def _has(known: set[BlockHash], index: SubscriberIndex) -> bool:
    return index.media[GPU] == known


def _blocks_of(asks: Sequence[Ask], reference: Reference) -> set[tuple[int, ...]]:
    whole = [(*ask.prompt, *reference.outputs(ask)[0]) for ask in asks]
    return {one[first : first + 16] for one in whole for first in range(0, len(one) - 15, 16)}


def _expected(pools: Pools, in_pool: set[BlockHash], hashes: Sequence[BlockHash]) -> list[PrefixHit]:
    own = [len(_leading(cached(instance), hashes)) for instance in pools.instances]
    in_memory = len(_leading(in_pool, hashes))
    longest = [gpu + len(_leading(in_pool, hashes[gpu:])) for gpu in own]
    return [PrefixHit(f"aggregated#{n}", 0, longest[n], gpu, in_memory, 0) for n, gpu in enumerate(own)]


def _leading(known: set[BlockHash], hashes: Sequence[BlockHash]) -> Sequence[BlockHash]:
    end = next((place for place, one in enumerate(hashes) if one not in known), len(hashes))
    return hashes[:end]
