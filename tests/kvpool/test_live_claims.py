"""Claims and hints over the wire: to all servers, through a drain, and from an instance's cache."""

from serving.ids import BlockHash, BlockId
from serving.kvpool.core.ring import ring_of
from serving.kvpool.live.context_cache import PoolContextCache
from serving.kvpool.live.migration import Migrator
from serving.values.kv_hints import BlockClaim, ClaimedBlocks, ClaimKind, HintAction, HintOutcome, HintStatus, HintVerb
from tests.kvpool.client_case import BLOCK, SPACE, chain, filled, soon
from tests.kvpool.pool_cluster import PoolCluster


def claim_of(hashes: list[BlockHash], session: str = "s") -> BlockClaim:
    return BlockClaim(session, "", "leaf", (ClaimedBlocks(ClaimKind.RETAIN, 600.0, tuple(hashes)),))


def test_claims_and_hints_reach_all_servers_and_survive_a_drain() -> None:
    with filled(3, 30) as (pool, client, hashes):
        (outcome,) = client.claim(SPACE, [claim_of(hashes)], soon())
        assert outcome == HintOutcome(HintStatus.ACCEPTED, 30, outcome.wanted)
        touch, missing = client.hint(
            "default", [HintAction(HintVerb.TOUCH, "s"), HintAction(HintVerb.TOUCH, "nobody")], soon()
        )
        assert (touch.status, touch.blocks, missing.status) == (HintStatus.ACCEPTED, 30, HintStatus.MISSING)
        pool.drain(0)
        Migrator(pool.client(), "kv-0").settle(ring_of(pool.view()), soon(), leaving=True)
        (facts,) = client.sessions("default", 10, soon())
        assert (facts.session, facts.dram_bytes) == ("s", 30 * BLOCK)
        assert 500 < facts.left_s <= 600
        pool.stop(0)
        (touch,) = client.hint("default", [HintAction(HintVerb.TOUCH, "s")], soon())
        assert touch.blocks == 30, "no claim was lost with the server that left"
        assert client.hint("other", [HintAction(HintVerb.RELEASE, "s")], soon())[0].status is HintStatus.MISSING


def test_an_instance_claims_what_it_has_stored_and_a_dead_pool_costs_nothing() -> None:
    hashes = chain(6)
    with PoolCluster(2) as pool:
        client = pool.client()
        arena = memoryview(bytearray(6 * BLOCK))
        cache = PoolContextCache([pool.client()], pool.client(), layout=SPACE.layout, arena=arena, block_bytes=BLOCK)
        cache.store("default", hashes, [BlockId(index) for index in range(6)])
        cache.claim("default", [claim_of(hashes), claim_of(hashes[:2], "other")])
        assert cache.facts()["counters"]["blocks_claimed"] == 8
        assert [facts.session for facts in client.sessions("default", 1, soon())] == ["other"]
        assert len(client.sessions("default", 9, soon())) == 2
    cache.claim("default", [claim_of(hashes)])
    assert cache.facts()["counters"]["blocks_claimed"] == 8
    cache.close()
