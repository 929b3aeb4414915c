"""The topologies of deploy/: each loads and matches its own comment."""

from dataclasses import replace
from pathlib import Path

import pytest

from hardware.units import MIB
from serving.config import load_config
from serving.config.engine import PoolConfig

DEPLOY = Path(__file__).parents[2] / "deploy"
TOPOLOGIES = sorted(DEPLOY.glob("*.toml"))
ELSEWHERE = "hosts"
"""Its nodes are those of the Ray that it is deployed on."""
COMPUTING = [file for file in TOPOLOGIES if load_config(file).engine.executor != "simulated" and file.stem != ELSEWHERE]


@pytest.mark.parametrize("file", COMPUTING, ids=lambda file: file.stem)
def test_hbm_not_ub_memory_bounds_the_kv_blocks(file: Path) -> None:
    config = load_config(file)
    for pool in config.pools.values():
        hbm = pool.dies_per_instance * config.hardware.hbm_per_die_bytes
        room = hbm * (1 - config.hardware.workspace_share)
        assert room <= pool.ub_memory_mib * MIB <= hbm


def test_small_is_one_prefill_and_one_decode_instance_on_one_node() -> None:
    config = load_config(DEPLOY / "small.toml")
    assert [node.npus for node in config.cluster.nodes] == [8]
    assert {name: (p.replicas, p.npus_per_instance) for name, p in config.pools.items()} == {
        "prefill": (1, 1),
        "decode": (1, 2),
    }
    assert config.model.dtype == "float32"


def test_two_nodes_leaves_no_placement_without_handoffs_between_nodes() -> None:
    config = load_config(DEPLOY / "two-nodes.toml")
    nodes, pools = config.cluster.nodes, config.pools
    assert len(nodes) == 2
    assert [pool.replicas for pool in pools.values()] == [2, 2]
    # No node holds all four: in every placement some prefill and some decode instance are on different nodes.
    assert all(sum(p.replicas * p.npus_per_instance for p in pools.values()) > node.npus for node in nodes)


@pytest.mark.parametrize("file", COMPUTING, ids=lambda file: file.stem)
def test_each_has_a_pool_with_a_tier_on_disk(file: Path) -> None:
    kvcache = load_config(file).kvcache
    assert kvcache.replicas >= 1
    assert kvcache.ssd_mib > kvcache.ub_memory_mib


@pytest.mark.parametrize("file", COMPUTING, ids=lambda file: file.stem)
def test_every_pool_may_grow_by_one_at_the_same_time(file: Path) -> None:
    config = load_config(file)
    sizes = {name: (p.npus_per_instance, p.ub_memory_mib) for name, p in config.pools.items()}
    started = [sizes[name] for name, p in config.pools.items() for _ in range(p.replicas)]
    server = (0, config.kvcache.ub_memory_mib)
    started += [server] * config.kvcache.replicas
    nodes = [(node.npus, node.ub_memory_mib) for node in config.cluster.nodes]
    assert always_placed([*started, *sizes.values(), server], nodes)


def always_placed(replicas: list[tuple[int, int]], nodes: list[tuple[int, int]]) -> bool:
    """Whether every replica finds NPUs and memory on one node, for any placement of the earlier ones."""
    if not replicas:
        return True
    (npus, mib), *others = replicas
    places = [at for at, (free, free_mib) in enumerate(nodes) if npus <= free and mib <= free_mib]
    return bool(places) and all(
        always_placed(others, [(f - npus * (i == at), m - mib * (i == at)) for i, (f, m) in enumerate(nodes)])
        for at in places
    )


def test_tenants_have_keys_quotas_and_an_operator() -> None:
    config = load_config(DEPLOY / "tenants.toml")
    assert {n.name: (len(n.api_keys), n.quota_mib > 0) for n in config.namespaces} == {
        "acme": (2, True),
        "globex": (1, True),
        "default": (0, True),
    }
    assert config.api_keys_required
    assert config.gateway.admin_keys


def test_aggregated_has_the_npus_of_small() -> None:
    small, aggregated = load_config(DEPLOY / "small.toml"), load_config(DEPLOY / "aggregated.toml")
    npus = [sum(p.replicas * p.npus_per_instance for p in c.pools.values()) for c in (small, aggregated)]
    assert npus[0] == npus[1]
    assert small.hardware == aggregated.hardware


def test_the_live_supernode_is_the_one_of_virtual_time() -> None:
    live, virtual = (load_config(DEPLOY / f"cloudmatrix384{kind}.toml") for kind in ("-live", ""))
    assert live.engine.executor == virtual.engine.executor == "simulated"
    assert {name: (p.replicas, p.npus_per_instance, p.max_step_tokens) for name, p in live.pools.items()} == {
        "prefill": (6, 16, 262_144),
        "decode": (1, 160, live.decode.max_step_tokens),
    }
    assert live.prefill == replace(virtual.prefill, **_sizes(live.prefill))
    assert (
        live.kvcache.replicas * live.kvcache.ub_memory_mib == virtual.kvcache.replicas * virtual.kvcache.ub_memory_mib
    )
    assert live.engine.block_tokens == virtual.engine.block_tokens


def _sizes(pool: PoolConfig) -> dict[str, int]:
    return {"ub_memory_mib": pool.ub_memory_mib, "max_sequences": pool.max_sequences, "max_waiting": pool.max_waiting}
