"""Claims and hints over the wire: to all servers, through a drain, and from an instance's cache."""

from pathlib import Path

from serving.config import ModelConfig, NamespaceConfig, ServeConfig
from serving.ids import BlockHash, BlockId
from serving.kvpool.core.controller import ROUND_S, PoolController
from serving.kvpool.core.messages import Done, SetNamespaces
from serving.kvpool.core.ring import ring_of
from serving.kvpool.core.server_settings import ClaimSettings
from serving.kvpool.live.context_cache import PoolContextCache
from serving.kvpool.live.migration import Migrator
from serving.kvpool.live.pool_client import PoolClient
from serving.kvpool.live.pool_control import control_settings
from serving.kvpool.live.replica import shares_of
from serving.values.kv_hints import BlockClaim, ClaimedBlocks, ClaimKind, HintAction, HintOutcome, HintStatus, HintVerb
from serving.values.pool_view import NamespaceRecord
from tests.kvpool.client_case import BLOCK, MIB, SPACE, chain, filled, soon
from tests.kvpool.pool_cluster import PoolCluster


def claim_of(hashes: list[BlockHash], session: str = "s", kind: ClaimKind = ClaimKind.RETAIN) -> BlockClaim:
    return BlockClaim(session, "", session, (ClaimedBlocks(kind, 600.0, tuple(hashes)),))


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


def test_limits_of_claims_reach_all_servers_and_follow_the_configuration() -> None:
    """Each start of the controller, as after a change of the file, hears first what servers were told before."""
    known: tuple[NamespaceRecord, ...] = ()
    versions = set()

    def configure(client: PoolClient, pool: PoolCluster, **limits: float) -> None:
        nonlocal known
        config = ServeConfig(ModelConfig(path=Path("m")), namespaces=(NamespaceConfig("default", **limits),))  # type: ignore[arg-type]
        controller = PoolController(control_settings(config, "s"))
        for number in pool.alive():
            controller.hear(pool.process(number).record, known, 0.0)
        view = controller.view(ROUND_S)
        assert view is not None
        assert view.version not in versions, "servers read a view of another version only"
        versions.add(view.version)
        known = view.namespaces
        for name, link in client.placement.links.items():
            link.ask(Done, SetNamespaces(tuple(shares_of(view, name))), soon())

    with filled(2, 60, claims=ClaimSettings(pin_share=1.0)) as (pool, client, hashes):

        def claimed(kind: ClaimKind = ClaimKind.RETAIN) -> HintOutcome:
            client.hint("default", [HintAction(HintVerb.RELEASE, "s")], soon())
            return client.claim(SPACE, [claim_of(hashes, kind=kind)], soon())[0]

        configure(client, pool)
        assert claimed().blocks == 60
        configure(client, pool, retain_mib=1)
        assert 0 < claimed().blocks <= MIB // BLOCK
        assert claimed().status is HintStatus.CLIPPED
        assert claimed(ClaimKind.PIN).status is HintStatus.ACCEPTED
        configure(client, pool, pin_mib=1, max_ttl_s=5.0)
        assert claimed(ClaimKind.PIN).status is HintStatus.CLIPPED
        assert claimed().blocks == 60
        assert 0 < client.sessions("default", 1, soon())[0].left_s <= 5
        configure(client, pool, quota_mib=9)
        assert claimed(ClaimKind.PIN).status is HintStatus.ACCEPTED
        assert client.sessions("default", 1, soon())[0].left_s > 500
