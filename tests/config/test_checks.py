"""Topologies that cannot run are refused with the numbers and the remedy."""

import re
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hardware.units import GIB
from serving.config import (
    ClusterConfig,
    HardwareConfig,
    KvCacheConfig,
    ModelConfig,
    NodeConfig,
    PoolConfig,
    ServeConfig,
    ServingConfig,
)
from serving.config.checks import check_consistency
from serving.errors import ConfigError
from tests.config.toml_file import load

PARTS = '[autoscaler]\npolicy = "slo"\ndecode_step_npus = {}\nmin_decode_npus = {}\nmax_decode_npus = {}\n'
ROLES = "[decode]\nnpus_per_instance = 1\nattention_ranks = 2\nexpert_ranks = 1\n"
REFUSED = {
    "an origin with a path": (
        '[gateway]\nallowed_origins = ["*", "https://chat.example.com/"]',
        "[gateway] allowed_origins holds 'https://chat.example.com/', which no browser sends: write scheme and host in",
    ),
    "a host with a scheme": (
        '[gateway]\nallowed_hosts = ["*.example.com", "http://llm.example.com"]',
        "[gateway] allowed_hosts holds 'http://llm.example.com', which is not a host: write its name or address alone",
    ),
    "a host with a port": (
        '[gateway]\nallowed_hosts = ["llm.example.com:8000"]',
        "[gateway] allowed_hosts holds 'llm.example.com:8000', which is not a host",
    ),
    "an origin with a default port": (
        '[gateway]\nallowed_origins = ["https://chat.example.com:443"]',
        "[gateway] allowed_origins holds 'https://chat.example.com:443', which no browser sends",
    ),
    "a pool that keeps nothing": (
        "[engine]\nprefix_reuse = false\n[kvcache]\nreplicas = 1\nmodels = false",
        "[kvcache] replicas = 1, but with [engine] prefix_reuse = false and [kvcache] models = false nothing would be",
    ),
    "a budget that is spent from the start": (
        '[autoscaler]\npolicy = "slo"\nnpu_budget = 5',
        "[autoscaler] npu_budget = 5, but the pools start with 6 NPUs: raise it or lower replicas",
    ),
    "a path that is lost before it is late": (
        "[health]\nprobe_lost_s = 0.2",
        "[health] probe_late_s = 0.25 must be below probe_lost_s = 0.2: a path would be lost before it counts as",
    ),
    "two servers on one port": (
        "[gateway]\nport = 8265",
        "[gateway] port = 8265 is also [cluster] dashboard_port: change one of them",
    ),
    "two servers on one port of every interface": (
        '[gateway]\nhost = "0.0.0.0"\n[cluster]\ndashboard_port = 8000',
        "[gateway] port = 8000 is also [cluster] dashboard_port",
    ),
    "simulated blocks of another size": (
        '[engine]\nexecutor = "simulated"\nkv_dtype = "int8"\n[hardware]\nhbm_per_die_mib = 0',
        '[engine] kv_dtype = "int8", but simulated blocks are as large as their device keeps them: set it to "auto"',
    ),
    "a simulated die that is scaled down": (
        '[engine]\nexecutor = "simulated"',
        "[hardware] hbm_per_die_mib = 64 scales virtual dies down, but simulated ones have their device's memory: set"
        " it to 0",
    ),
    "a disk for blocks without bytes": (
        '[engine]\nexecutor = "simulated"\n[hardware]\nhbm_per_die_mib = 0\n[kvcache]\nreplicas = 1\nssd_mib = 8',
        "[kvcache] ssd_mib = 8, but simulated blocks have no bytes to put on disk: set it to 0",
    ),
    "ranks that do not fit a node together": (
        "[decode]\nep = 3\nnpus_per_instance = 3",
        "[decode] 3 ranks with npus_per_instance = 3, but the largest node has 8 NPUs and an instance must fit one"
        " node: lower it or ep",
    ),
    "ranks whose memory does not fit a node together": (
        "[decode]\nep = 4\nnpus_per_instance = 1\nub_memory_mib = 1024",
        "[decode] 4 ranks with ub_memory_mib = 1024, but the largest node has 1024 MiB of UB memory: lower it or ep or",
    ),
    "ranks that together are too many": (
        "[decode]\nep = 2\nnpus_per_instance = 4",
        "prefill 1 x 2 + decode 1 x 8 NPUs = 10, but the cluster offers 8: lower replicas or npus_per_instance",
    ),
    "ranks without room for their spares": (
        "[experts]\nspares = 1\n[decode]\nep = 2\nnpus_per_instance = 2\n[prefill]\nnpus_per_instance = 4",
        "prefill 1 x 4 + decode 1 x 6 NPUs = 10, but the cluster offers 8: lower replicas or npus_per_instance",
    ),
    "ranks that torch would have to compute": (
        '[engine]\nexecutor = "torch"\n[decode]\nep = 2\nnpus_per_instance = 1',
        '[decode] ep = 2, but [engine] executor = "torch" has no ranks: set it to "native" or "auto", or ep to 1',
    ),
    "ranks that are simulated": (
        '[engine]\nexecutor = "simulated"\n[hardware]\nhbm_per_die_mib = 0\n[decode]\nep = 2\nnpus_per_instance = 1',
        '[decode] ep = 2, but [engine] executor = "simulated" has no ranks',
    ),
    "more spares than a group may have ranks": (
        "[experts]\nspares = 3\nmost_ranks = 4\n[decode]\nep = 2\nnpus_per_instance = 1",
        "[decode] ep = 2 with [experts] spares = 3 makes more than 4 ranks: raise most_ranks to 5",
    ),
    "a part that is half a rank": (
        PARTS.format(1, 4, 6) + "[decode]\nep = 2\nnpus_per_instance = 2",
        "[autoscaler] decode_step_npus = 1 is not a whole number of ranks, which have npus_per_instance = 2 NPUs",
    ),
    "fewer ranks than a group keeps the NPUs of": (
        PARTS.format(1, 1, 4) + "[decode]\nep = 2\nnpus_per_instance = 1",
        "[autoscaler] min_decode_npus = 1, but a group keeps the 2 NPUs of the ranks that it starts with, [decode]"
        " ep = 2, however few it has: set it to 2",
    ),
    "more ranks than a group can have": (
        PARTS.format(1, 2, 6) + "[decode]\nep = 2\nnpus_per_instance = 1\n[experts]\nmost_ranks = 4",
        "[autoscaler] max_decode_npus = 6 makes more than 4 ranks of a group: set it to 4, or raise [experts]",
    ),
    "attention ranks without expert ranks": (
        "[decode]\nattention_ranks = 2",
        "[decode] attention_ranks = 2 without expert_ranks: give both, or neither",
    ),
    "expert ranks without attention ranks": (
        "[prefill]\nexpert_ranks = 1",
        "[prefill] expert_ranks = 1 without attention_ranks",
    ),
    "NPUs of no expert rank": ("[decode]\nexpert_npus = 1", "[decode] expert_npus = 1 without attention_ranks"),
    "ranks of both kinds and of one": (
        ROLES + "ep = 2",
        "[decode] ep = 2 beside attention_ranks = 2 and expert_ranks = 1: the ranks of ep have both roles",
    ),
    "ranks of two kinds that do not fit a node": (
        ROLES + "expert_npus = 7",
        "[decode] 2 attention ranks with 1 and 1 expert ranks with 7 npus_per_instance, but the largest node has 8",
    ),
    "ranks of two kinds that have no room in a window": (
        ROLES + "[experts]\nmost_ranks = 33",
        "[experts] most_ranks = 33, but windows have room for 32 ranks of a kind with [decode] attention_ranks = 2",
    ),
    "ranks of two kinds that torch computes": (
        '[engine]\nexecutor = "torch"\n' + ROLES,
        '[decode] attention_ranks = 2 and expert_ranks = 1, but [engine] executor = "torch" has no ranks',
    ),
    "ranks of two kinds that have other dies than are simulated": (
        "[simulation]\nexpert_dies = 4\n" + ROLES,
        "[simulation] expert_dies = 4, but [decode] attention_ranks = 2 and expert_ranks = 1 with 1 NPUs for each",
    ),
    "ranks of two kinds on an accelerator": (
        'device = "cuda"\n' + ROLES,
        '[decode] attention_ranks = 2 and expert_ranks = 1 need [model] device = "cpu", and it is "cuda"',
    ),
    "shared experts on other nodes beside rounded results": (
        'expert_results = "bfloat16"\n' + ROLES + '[experts]\nacross_nodes = true\nshared = "experts"',
        '[decode] attention_ranks = 2 and expert_ranks = 1 with [experts] across_nodes and shared = "experts", but'
        ' [model] expert_results = "bfloat16"',
    ),
    "more spares than there is room for expert ranks": (
        ROLES + "[experts]\nspares = 1\nmost_ranks = 2",
        "[decode] attention_ranks = 2 and expert_ranks = 1 with [experts] spares = 1 makes more than 2 ranks of a",
    ),
    "parts of a group with two kinds of ranks": (
        PARTS.format(1, 3, 6) + ROLES,
        "[autoscaler] decode_step_npus = 1 resizes groups of one kind of ranks, not [decode] attention_ranks = 2",
    ),
    "ranks on an accelerator": (
        'device = "cuda"\n[decode]\nep = 2\nnpus_per_instance = 1',
        '[decode] ep = 2 needs [model] device = "cpu", and it is "cuda": change either',
    ),
    "an empty pool that nobody wakes": (
        "[decode]\nreplicas = 0",
        "[decode] replicas = 0, but nothing would wake the pool: set [autoscaler] policy and a least of 0, or raise",
    ),
    "an empty pool below its least": (
        '[prefill]\nreplicas = 0\n[autoscaler]\npolicy = "slo"\nmin_decode = 0',
        "[prefill] replicas = 0, but nothing would wake the pool",
    ),
    "a least above the most": (
        "[autoscaler]\nmin_decode = 5",
        "[autoscaler] min_decode = 5 is above max_decode = 4: lower it",
    ),
    "too few NPUs": (
        "[prefill]\nreplicas = 2\nnpus_per_instance = 2\n[decode]\nreplicas = 2\nnpus_per_instance = 4",
        "prefill 2 x 2 + decode 2 x 4 NPUs = 12, but the cluster offers 8: lower replicas or npus_per_instance,"
        " or add a node",
    ),
    "instance larger than a node": (
        "[decode]\nnpus_per_instance = 9",
        "[decode] npus_per_instance = 9, but the largest node has 8 NPUs and an instance must fit one node: lower it",
    ),
    "instance memory larger than a node's": (
        "[decode]\nub_memory_mib = 2000",
        "[decode] ub_memory_mib = 2000, but the largest node has 1024 MiB of UB memory",
    ),
    "too little UB memory": (
        "[decode]\nub_memory_mib = 900",
        "prefill 1 x 256 + decode 1 x 900 MiB of UB memory = 1156, but the cluster offers 1024",
    ),
    "enough in total, not on one node": (
        "[[cluster.nodes]]\nnpus = 5\n[[cluster.nodes]]\nnpus = 5\n[prefill]\nreplicas = 2\nnpus_per_instance = 3",
        "the nodes cannot hold prefill 2 x (3 NPUs, 256 MiB), decode 1 x (4 NPUs, 512 MiB),"
        " each instance whole on one of node-0 (5 NPUs, 1024 MiB), node-1 (5 NPUs, 1024 MiB)",
    ),
    "one name for two nodes": (
        '[[cluster.nodes]]\nname = "east"\n[[cluster.nodes]]\nname = "east"',
        "two [[cluster.nodes]] are called 'east': give each its own name",
    ),
    "a step smaller than its batch": (
        "[decode]\nmax_step_tokens = 8\nmax_sequences = 9",
        "[decode] a step of 8 tokens cannot feed 9 running sequences",
    ),
    "no UB memory left for a memory server": (
        "[kvcache]\nreplicas = 2",
        "prefill 1 x 256 + decode 1 x 512 + kvcache 2 x 256 MiB of UB memory = 1280, but the cluster offers 1024",
    ),
    "memory server larger than a node": (
        "[kvcache]\nreplicas = 1\nub_memory_mib = 1025",
        "[kvcache] ub_memory_mib = 1025, but the largest node has 1024 MiB of UB memory: lower it or raise",
    ),
    "memory server that fits no node beside the instances": (
        "[[cluster.nodes]]\nub_memory_mib = 512\n[[cluster.nodes]]\nub_memory_mib = 512\n[kvcache]\nreplicas = 1\n"
        "ub_memory_mib = 256\n[decode]\nub_memory_mib = 384\n[prefill]\nub_memory_mib = 384",
        "the nodes cannot hold prefill 1 x (2 NPUs, 384 MiB), decode 1 x (4 NPUs, 384 MiB), kvcache 1 x (256 MiB),"
        " each instance whole on one of node-0 (8 NPUs, 512 MiB), node-1 (8 NPUs, 512 MiB)",
    ),
    "a writer slower than its lease": (
        "[kvcache]\nput_timeout_s = 10",
        "[kvcache] put_timeout_s = 10 must be below write_lease_s = 10: a writer must give up",
    ),
    "a reader slower than its lease": (
        "[kvcache]\nget_timeout_s = 6",
        "[kvcache] get_timeout_s = 6 must be below lease_s = 5: a reader must be done",
    ),
    "water marks the wrong way round": (
        "[kvcache]\nlow_water = 0.9\nhigh_water = 0.5",
        "[kvcache] low_water = 0.9 is above high_water = 0.5: lower it",
    ),
    "no such directory": (
        '[kvcache]\ndirectory = "etcd://there"',
        '[kvcache] directory must be "embedded" or an address such as "redis://127.0.0.1:6379/0"',
    ),
    "a Redis nowhere": ('[kvcache]\ndirectory = "redis://"', '[kvcache] directory must be "embedded"'),
    "a root without a slash": ('[gateway]\nroot_path = "llm"', "[gateway] root_path = 'llm' must begin with a slash"),
    "a root of our own": (
        '[gateway]\nroot_path = "/v1"',
        "[gateway] root_path = '/v1' starts like a path of the endpoint",
    ),
    "responses nowhere": (
        '[gateway]\nresponse_store = "disk"',
        '[gateway] response_store must be "auto", "memory" or an address such as "redis://127.0.0.1:6379/0"',
    ),
    "write-through to nothing": (
        "[kvcache]\nwrite_through = true",
        "[kvcache] write_through needs an SSD tier: set ssd_mib above 0, or remove it",
    ),
    "a folder for nothing": (
        '[kvcache]\nssd_path = "ssd"',
        "[kvcache] ssd_path needs an SSD tier: set ssd_mib above 0, or remove it",
    ),
    "slabs larger than the server": (
        "[kvcache]\nub_memory_mib = 1",
        "[kvcache] slab_kib = 2048 is more than a whole memory server of 1 MiB: lower it",
    ),
}


@pytest.mark.parametrize(("text", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_a_topology_that_cannot_run_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(f"{tmp_path / 'site.toml'}: {message}")):
        load(tmp_path, text)


def test_one_port_of_two_addresses_is_two_ports(tmp_path: Path) -> None:
    config = load(tmp_path, '[gateway]\nport = 8265\n[cluster]\ndashboard_host = "10.0.0.7"')
    assert config.gateway.port == config.cluster.dashboard_port


def test_a_group_across_nodes_needs_room_for_each_rank(tmp_path: Path) -> None:
    nodes = "[[cluster.nodes]]\nnpus = 5\n[[cluster.nodes]]\nnpus = 5\n[decode]\nep = 2\nnpus_per_instance = 3\n"
    with pytest.raises(ConfigError, match="2 ranks with npus_per_instance = 3"):
        load(tmp_path, nodes)
    assert load(tmp_path, nodes + "[experts]\nacross_nodes = true").decode.ep == 2
    with pytest.raises(ConfigError, match=re.escape("decode 2 x (4 NPUs, ")):
        load(tmp_path, nodes.replace("= 3", "= 4") + "[experts]\nacross_nodes = true")
    roles = nodes.replace("ep = 2", "attention_ranks = 1\nexpert_ranks = 1\nexpert_npus = 4")
    assert load(tmp_path, roles + "[experts]\nacross_nodes = true").decode.has_roles
    with pytest.raises(ConfigError, match=re.escape("decode 1 x (2 NPUs, 512 MiB), decode 1 x (6 NPUs, ")):
        load(tmp_path, roles.replace("= 4", "= 6").replace("= 3", "= 2") + "[experts]\nacross_nodes = true")


def test_pools_that_the_mode_does_not_start_are_not_counted(tmp_path: Path) -> None:
    config = load(tmp_path, '[serving]\nmode = "aggregated"\n[prefill]\nreplicas = 100\n')
    assert config.instances == 1


@pytest.mark.parametrize("address", ["embedded", "redis://127.0.0.1:6379/0", "rediss://u:p@host", "unix:///run/redis"])
def test_directories_that_there_are(tmp_path: Path, address: str) -> None:
    assert load(tmp_path, f'[kvcache]\ndirectory = "{address}"\n').kvcache.directory == address


def config_of(
    nodes: list[tuple[int, int]],
    prefill: tuple[int, int, int],
    decode: tuple[int, int, int],
    kvcache: tuple[int, int] = (0, 9),
) -> ServeConfig:
    """Nodes as (NPUs, MiB), pools as (replicas, NPUs, MiB), memory servers as (replicas, MiB)."""
    return ServeConfig(
        model=ModelConfig(path=Path("checkpoint")),
        cluster=ClusterConfig(nodes=tuple(NodeConfig(f"n{i}", *size) for i, size in enumerate(nodes))),
        prefill=PoolConfig(*prefill),
        decode=PoolConfig(*decode),
        kvcache=KvCacheConfig(replicas=kvcache[0], ub_memory_mib=kvcache[1], slab_kib=64),
    )


def fits_somehow(nodes: list[tuple[int, int]], instances: list[tuple[int, int]]) -> bool:
    """Try every placement of every instance."""
    for places in product(range(len(nodes)), repeat=len(instances)):
        used = [[0, 0] for _ in nodes]
        for place, (npus, memory) in zip(places, instances, strict=True):
            used[place][0] += npus
            used[place][1] += memory
        if all(u[0] <= n[0] and u[1] <= n[1] for u, n in zip(used, nodes, strict=True)):
            return True
    return False


def accepted(config: ServeConfig) -> bool:
    """Whether the loader would take this topology."""
    try:
        check_consistency(config, "site.toml")
    except ConfigError:
        return False
    return True


def test_npus_are_refused_exactly_when_no_placement_exists() -> None:
    """Tests every pair of small nodes with every pair of small pools, with ample memory."""
    for first, second, prefill_npus, decode_npus in product((2, 3, 6), (2, 4, 5), (1, 2, 3), (1, 3, 4)):
        for prefill, decode in product((1, 2, 3), repeat=2):
            nodes = [(first, 99), (second, 99)]
            config = config_of(nodes, (prefill, prefill_npus, 1), (decode, decode_npus, 1))
            fits = fits_somehow(nodes, [(prefill_npus, 1)] * prefill + [(decode_npus, 1)] * decode)
            assert accepted(config) == fits, (nodes, config.pools)


sizes = st.tuples(st.integers(2, 8), st.integers(2, 8))
pools = st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(1, 3))


@given(
    st.lists(sizes, min_size=1, max_size=3),
    pools,
    pools,
    st.tuples(st.integers(0, 2), st.integers(1, 5)),
    st.booleans(),
)
def test_npus_and_memory_are_refused_exactly_when_no_placement_exists(
    nodes: list[tuple[int, int]],
    prefill: tuple[int, int, int],
    decode: tuple[int, int, int],
    kvcache: tuple[int, int],
    aggregated: bool,
) -> None:
    config = config_of(nodes, prefill, decode, kvcache)
    instances = [prefill[1:]] * prefill[0] + [(0, kvcache[1])] * kvcache[0]
    if aggregated:
        config = replace(config, serving=ServingConfig(mode="aggregated"), aggregated=config.prefill)
    else:
        instances += [decode[1:]] * decode[0]
    assert accepted(config) == fits_somehow(nodes, instances)


def test_a_large_cluster_is_judged_at_once() -> None:
    """48 full nodes: once full to the last MiB as well, once with one memory server too many."""
    nodes = [(8, 64)] * 48
    assert accepted(config_of(nodes, (6 * 4, 8, 32), (48 - 24, 8, 48), (48, 16)))
    assert not accepted(config_of(nodes, (24, 8, 32), (24, 8, 48), (25, 17)))


def test_zero_asks_for_the_real_die() -> None:
    assert HardwareConfig(hbm_per_die_mib=0).hbm_per_die_bytes == 64 * GIB


def test_a_pool_that_is_woken_may_begin_empty(tmp_path: Path) -> None:
    config = load(tmp_path, '[decode]\nreplicas = 0\n[autoscaler]\npolicy = "slo"\nmin_decode = 0')
    assert config.decode.replicas == 0
    assert replace(config, prefill=replace(config.prefill, replicas=0)).threads_per_instance(3) == 2
