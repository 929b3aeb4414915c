"""Claims in virtual time: over all servers, through drains and deaths."""

from serving.ids import BlockHash
from serving.values.kv_hints import BlockClaim, ClaimedBlocks, ClaimKind, HintAction, HintStatus, HintVerb
from serving.virtual.memory_pool import VirtualPool
from tests.virtual.core.memory_case import MIB, chain, fill, found, pool_of, run_to


def claim(pool: VirtualPool, blocks: list[BlockHash], now: float, leaf: str = "l", ttl_s: float = 600.0) -> HintStatus:
    run = ClaimedBlocks(ClaimKind.RETAIN, ttl_s, tuple(blocks))
    return pool.claim("default", BlockClaim("s", "", leaf, (run,)), now).status


def hint(pool: VirtualPool, verb: HintVerb, now: float) -> HintStatus:
    return pool.hint("default", HintAction(verb, "s"), now).status


def test_claimed_blocks_outlive_a_flood_and_a_drain() -> None:
    pool = pool_of(servers=3, blocks=40, drain_s=30.0)
    pool.store("default", chain(0), 1, 0.0)
    assert claim(pool, chain(0), 0.0) is HintStatus.ACCEPTED
    pool.remove_server(pool.servers()[0].name, 1.0)
    run_to(pool, 40.0)
    assert len(pool.servers()) == 2, "it has left"
    (facts,) = pool.sessions("default", 10, 40.0)
    assert (facts.dram_bytes, facts.left_s) == (8 * MIB, 560.0), "claims went with their blocks"
    for number in range(1, 40):
        pool.store("default", chain(number), 1, 41.0)
    assert found(pool, chain(0), 42.0) == 8
    assert hint(pool, HintVerb.RELEASE, 43.0) is HintStatus.ACCEPTED
    for number in range(40, 42):
        pool.store("default", chain(number), 1, 44.0)
    assert found(pool, chain(0), 45.0) < 8
    run_to(pool, 50.0)


def test_a_server_that_dies_takes_its_claims_with_it() -> None:
    pool = pool_of(servers=2, blocks=40)
    fill(pool, 2)
    assert claim(pool, chain(0) + chain(1), 0.0) is HintStatus.ACCEPTED
    (before,) = pool.sessions("default", 10, 0.0)
    pool.lose_server(pool.servers()[0].name, 1.0, keeps_ssd=False)
    (after,) = pool.sessions("default", 10, 1.0)
    assert 0 < after.dram_bytes < before.dram_bytes
    pool.add_server(20.0)
    run_to(pool, 60.0)
    assert hint(pool, HintVerb.TOUCH, 60.0) is HintStatus.ACCEPTED


def test_a_newer_turn_supersedes_on_servers_that_have_none_of_its_blocks() -> None:
    pool = pool_of(servers=4, blocks=40)
    fill(pool, 1)
    claim(pool, chain(0), 0.0, leaf="one")
    assert claim(pool, [], 1.0, leaf="two") is HintStatus.ACCEPTED
    (facts,) = pool.sessions("default", 10, 1.0)
    assert facts.dram_bytes == 0


def test_a_session_sleeps_on_ssd_and_is_back_before_its_next_turn() -> None:
    pool = pool_of(servers=2, blocks=40, ssd_mib=400)
    fill(pool, 1)
    claim(pool, chain(0), 0.0)
    assert hint(pool, HintVerb.DEMOTE, 1.0) is HintStatus.ACCEPTED
    run_to(pool, 5.0)
    (facts,) = pool.sessions("default", 10, 5.0)
    assert (facts.dram_bytes, facts.ssd_bytes) == (0, 8 * MIB)
    assert hint(pool, HintVerb.PREFETCH, 6.0) is HintStatus.ACCEPTED
    run_to(pool, 10.0)
    answer = pool.lookup_and_hold("default", chain(0), 1, 10.0)
    assert (answer.blocks, answer.from_ssd) == (8, 0)
