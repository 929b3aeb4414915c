"""A gateway's connections to memory servers: answers, and what a server that is away, frozen or replaced costs."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from serving.gateway.core import events as e
from serving.gateway.core.prefetch_choice import LONG_TOKENS
from serving.gateway.live import memory_links
from serving.gateway.live.backend import LiveBackend
from serving.gateway.live.memory_links import MemoryLinks, Prefetcher
from serving.ids import GatewayId, NodeId, ReplicaId, RequestId, SequenceId
from serving.kvpool.core.messages import Data, Looked, Lookup, Stats
from serving.kvpool.live.server_link import hello_of
from serving.values.instances import Status
from serving.values.jobs import GenerationJob
from serving.values.sequence import SamplingParams, SequenceSpec
from tests.kvpool.client_case import SOON_S, SPACE, chain, filled, put_all
from tests.kvpool.pool_cluster import PoolCluster
from tests.live.harness import small_config

pytestmark = pytest.mark.real_time


def links_to(pool: PoolCluster, secret: str = "secret") -> MemoryLinks:
    """Links of a gateway on another node."""
    return MemoryLinks(hello_of("gateway", NodeId("g"), secret), pool.view)


def test_owners_answer_for_their_own_blocks_on_one_connection_each() -> None:
    with filled(2, blocks=20) as (pool, _client, hashes):

        async def scene() -> None:
            links = links_to(pool)
            asked = [*hashes, *chain(5, "absent")]
            for _ in range(3):
                answers = await links.ask_owners(asked, lambda mine: Lookup(SPACE, mine, 1.0), Looked, SOON_S)
                found = {one.hash for answer in answers.values() for one in answer.found if one is not None}
                assert found == set(hashes)
                assert sum(len(answer.found) for answer in answers.values()) == len(asked), "each asked of one server"
            connections = [one.value["connections"] for one in (await links.ask_all(Stats(), Data, SOON_S)).values()]
            assert connections == [2, 2], "the client's that wrote, and one of the gateway"
            assert links.servers == ("kv-0", "kv-1")
            links.close()

        asyncio.run(scene())


def test_a_lost_server_is_absent_and_its_successor_answers() -> None:
    with PoolCluster(2) as pool:

        async def scene() -> None:
            links = links_to(pool)
            assert len(await links.ask_all(Stats(), Data, SOON_S)) == 2
            pool.kill(0, listed=True)
            assert list(await links.ask_all(Stats(), Data, SOON_S)) == ["kv-1"]
            assert list(await links.ask_all(Stats(), Data, SOON_S)) == ["kv-1"]
            pool.replace(0)
            assert len(await links.ask_all(Stats(), Data, SOON_S)) == 2
            pool.stop(1)
            assert list(await links.ask_all(Stats(), Data, SOON_S)) == ["kv-0"]
            links.close()
            links_of_a_stranger = links_to(pool, "another secret")
            assert await links_of_a_stranger.ask_all(Stats(), Data, SOON_S) == {}

        asyncio.run(scene())


def test_a_late_answer_is_not_taken_for_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_links, "MAX_WAITING", 3)
    with PoolCluster(1) as pool:

        async def scene() -> None:
            links = links_to(pool)
            assert await links.ask_all(Stats(), Data, SOON_S)
            pool.process(0).freeze()
            asks = [links.ask_all(Stats(), Data, 0.2) for _ in range(5)]
            assert await asyncio.gather(*asks) == [{}] * 5, "two are not sent, three wait in vain"
            pool.process(0).resume()
            answers: dict[str, Looked] = {}
            for _ in range(100):  # the server is left alone for a moment
                answers = await links.ask_all(Lookup(SPACE, tuple(chain(1)), 1.0), Looked, SOON_S)
                if answers:
                    break
                await asyncio.sleep(0.05)
            assert answers["kv-0"].found == (None,)
            links.close()

        asyncio.run(scene())


def test_prefetches_are_asked_in_the_background_and_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_links, "MAX_PREFETCHES", 2)
    monkeypatch.setattr(memory_links, "ANSWER_S", SOON_S)
    hashes = chain(60)
    with PoolCluster(2, ssd_folder=tmp_path, ssd_bytes=64 << 20, capacity_bytes=4 << 20) as pool:
        put_all(pool.client(), hashes, 256 << 10)

        async def scene() -> None:
            prefetcher = Prefetcher(links_to(pool))
            tasks = [
                prefetcher.start(SPACE.namespace, SPACE.layout, [*hashes[:10], *chain(2, "absent")]) for _ in range(3)
            ]
            assert [task is None for task in tasks] == [False, False, True], "the third is one too many"
            await asyncio.gather(*filter(None, tasks))
            blocks = prefetcher.blocks
            assert (blocks["missing"], blocks["unanswered"], blocks.total()) == (4, 0, 24)
            assert blocks["loading"] > 0
            pool.kill(0, listed=True)
            task = prefetcher.start(SPACE.namespace, SPACE.layout, hashes)
            assert task is not None
            await task
            assert 10 < blocks["unanswered"] < 50, "those of the server that is away"
            last = prefetcher.start(SPACE.namespace, SPACE.layout, hashes)
            prefetcher.close()
            assert last is not None
            (ended,) = await asyncio.gather(last, return_exceptions=True)
            assert isinstance(ended, asyncio.CancelledError)

        asyncio.run(scene())


def test_a_gateway_has_a_waiting_prompt_loaded_without_an_answer_of_anybody(tmp_path: Path) -> None:
    hashes = chain(40)
    config = small_config(Path("/nowhere"), kvcache={"replicas": 1, "ssd_mib": 64, "ub_memory_mib": 4})
    with PoolCluster(1, ssd_folder=tmp_path, ssd_bytes=64 << 20, capacity_bytes=4 << 20, prefetch_share=0.5) as pool:
        client = pool.client()
        put_all(client, hashes, 256 << 10)

        async def scene() -> None:
            backend = LiveBackend(GatewayId("g"), "s", config, ["prefill", "decode"])
            backend.prefetcher = Prefetcher(links_to(pool))
            welcome = SimpleNamespace(pool_layout=SPACE.layout, node="n")
            link = SimpleNamespace(up=True, welcome=welcome, send=lambda order: True, close=lambda why: None)
            replica = ReplicaId("prefill#0")
            backend.links._links[replica] = cast(Any, link)
            backend._tell(e.InstanceUp(replica, "prefill", NodeId("n"), 10_000))
            backend._tell(e.InstanceStatus(replica, Status(0, 0, 0, 10_000, False, 0.0, 0.0)))
            prompt = tuple(range(LONG_TOKENS))
            spec = SequenceSpec(SequenceId("r/0"), prompt, SamplingParams(), prompt_hashes=tuple(hashes[:8]))
            generation = backend.submit(GenerationJob(RequestId("r"), (spec,)))
            await asyncio.gather(*backend.prefetcher._running)
            assert backend.prefetcher.blocks == {
                "in_memory": 0,
                "loading": 8,
                "missing": 0,
                "refused": 0,
                "unanswered": 0,
            }
            pool.kill(0, listed=True)
            backend.submit(GenerationJob(RequestId("q"), (spec,)))
            await asyncio.gather(*backend.prefetcher._running)
            assert backend.prefetcher.blocks["unanswered"] == 8
            assert backend.core.running == 2, "nothing depends on it"
            generation.cancel()
            backend.close()

        asyncio.run(scene())
