"""Consistency checks of a configuration; every error is one line with the remedy."""

import re
from urllib.parse import urlsplit

from hardware.units import MIB
from serving.config.access_checks import check_hosts, check_namespaces, check_origins, check_root_path
from serving.config.cluster import NodeConfig
from serving.config.engine import PoolConfig
from serving.config.health import HealthConfig
from serving.config.kv_events import check_kv_events
from serving.config.kvcache import KvCacheConfig
from serving.config.model import ModelConfig
from serving.config.packing import Need, can_pack, check_acceptance, check_division
from serving.config.rank_checks import check_ranks, roles_as_dies
from serving.config.serve import ServeConfig
from serving.errors import ConfigError
from serving.values.pool_view import DEFAULT_NAMESPACE

_GCS_STORAGE = re.compile(r"embedded|memory|rediss?://[^/?#]+/?")
_DIRECTORY = re.compile(r"embedded|(redis|rediss|unix)://.+")
_RESPONSES = re.compile(r"auto|memory|(redis|rediss|unix)://.+")


def check_consistency(config: ServeConfig, source: str, *, own_nodes: bool = True) -> None:
    """Check across values that the topology can run.

    Args:
        source: the file's name, with which each message starts.
        own_nodes: whether the nodes are those of the file; if not, call `check_nodes` once they are known.
    Raises: ConfigError if two nodes share a name, two servers share a port, a pool starts empty without an autoscaler
        to start replicas, the autoscaler's minimum exceeds its maximum, its budget is below the existing resources,
        its parts form no instance, a step cannot feed the sequences that it may hold, an instance or memory server is
        larger than a node, all of them together are larger than the cluster, tenants are not distinct, no browser can
        send an allowed origin or host, no proxy can use the root path, settings of health or of the KV-cache pool
        contradict each other, stored responses have no location, settings contradict the simulated device, or an
        instance of several ranks has an executor or a device that does not support them.
    """
    try:
        _check_names(config.cluster.nodes)
        check_gcs_storage(config.cluster.gcs_storage)
        check_ports(config)
        _check_empty(config)
        _check_bounds(config)
        _check_parts(config)
        for name, pool in config.pools.items():
            _check_step(name, pool)
            check_ranks(name, pool, config)
        _check_health(config.health)
        _check_kvcache(config.kvcache)
        _check_reuse(config)
        check_kv_events(config.kv_events, frozenset({DEFAULT_NAMESPACE, *(one.name for one in config.namespaces)}))
        _check_responses(config.gateway.response_store)
        _check_simulation(config)
        check_namespaces(config.namespaces, config.gateway)
        check_root_path(config.gateway.root_path)
        check_origins(config.gateway.allowed_origins)
        check_hosts(config.gateway.allowed_hosts)
        if own_nodes:
            check_nodes(config)
    except ConfigError as error:
        raise ConfigError(f"{source}: {error}") from None


def check_nodes(config: ServeConfig) -> None:
    """Check that the nodes can hold everything that starts on them.

    Raises: ConfigError if an instance or memory server is larger than a node, or all of them together are larger than
        the cluster.
    """
    nodes = config.cluster.nodes
    for name, pool in config.pools.items():
        _check_instance(name, pool.as_one_process() if config.experts.across_nodes else pool, nodes)
    memory = max(node.ub_memory_mib for node in nodes)
    if config.kvcache.replicas and config.kvcache.ub_memory_mib > memory:
        raise ConfigError(
            f"[kvcache] ub_memory_mib = {config.kvcache.ub_memory_mib}, but the largest node has {memory} MiB of UB"
            f" memory: lower it or raise [[cluster.nodes]] ub_memory_mib"
        )
    _check_totals(config)
    _check_packing(config)


def check_model_folder(model: ModelConfig) -> None:
    """Check that the model folder looks like a checkpoint; the loader reads it.

    Raises: ConfigError if the folder does not exist or holds no config.json.
    Effects: reads the folder's entries.
    """
    if not model.path.is_dir():
        raise ConfigError(f"no model folder {model.path}: name one with --model or [model] path")
    if not (model.path / "config.json").is_file():
        raise ConfigError(
            f"{model.path} holds no config.json: --model or [model] path must name a Hugging Face checkpoint folder"
        )


def check_tokenizer_folder(model: ModelConfig) -> None:
    """Check that a separate tokenizer folder, if configured, holds a tokenizer.

    Raises: ConfigError if it does not.
    Effects: reads the folder's entries.
    """
    if model.tokenizer and not (model.tokenizer_folder / "tokenizer.json").is_file():
        raise ConfigError(f"{model.tokenizer} holds no tokenizer.json: correct [model] tokenizer, or leave it out")


def check_gcs_storage(kind: str) -> None:
    """Check `[cluster] gcs_storage`.

    Raises: ConfigError if it is not a supported kind.
    """
    if not _GCS_STORAGE.fullmatch(kind) or ("://" in kind and not _has_host(kind)):
        raise ConfigError('[cluster] gcs_storage must be "embedded", "memory" or "redis://[user:password@]host:port"')


def check_ports(config: ServeConfig) -> None:
    """Check that the gateway and Ray's dashboard do not listen on the same port.

    Raises: ConfigError if they do.
    """
    gateway, cluster = config.gateway, config.cluster
    hosts = {gateway.host, cluster.dashboard_host}
    if gateway.port == cluster.dashboard_port and (len(hosts) == 1 or hosts & {"0.0.0.0", "::"}):
        raise ConfigError(f"[gateway] port = {gateway.port} is also [cluster] dashboard_port: change one of them")


def _has_host(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return bool(parts.hostname) and parts.port != 0
    except ValueError:  # not a valid port
        return False


def _check_names(nodes: tuple[NodeConfig, ...]) -> None:
    names = [node.name for node in nodes]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"two [[cluster.nodes]] are called {name!r}: give each its own name")


def _check_empty(config: ServeConfig) -> None:
    """Require an autoscaler for pools that start empty."""
    for name, pool in config.pools.items():
        least, _ = config.autoscaler.bounds(name)
        if pool.replicas == 0 and (config.autoscaler.policy == "none" or least):
            raise ConfigError(
                f"[{name}] replicas = 0, but nothing would wake the pool: set [autoscaler] policy and a least of 0, or"
                f" raise replicas"
            )


def _check_bounds(config: ServeConfig) -> None:
    settings = config.autoscaler
    for pool in ("prefill", "decode", "kvcache"):
        low, high = settings.bounds(pool)
        if low > high:
            raise ConfigError(f"[autoscaler] min_{pool} = {low} is above max_{pool} = {high}: lower it")
    begin = {name: section.replicas for name, section in config.pools.items()}
    if config.kvcache.replicas:  # 0 = no such pool
        begin["kvcache"] = config.kvcache.replicas
    for name, replicas in begin.items() if settings.policy != "none" else ():
        low, high = settings.bounds(name)
        if not low <= replicas <= high:
            raise ConfigError(f"[{name}] replicas = {replicas}, but [autoscaler] allows {low} to {high}: change either")
    begun = sum(pool.replicas * pool.npus_per_replica for pool in config.pools.values())
    if settings.policy != "none" and 0 < settings.npu_budget < begun:
        raise ConfigError(
            f"[autoscaler] npu_budget = {settings.npu_budget}, but the pools start with {begun} NPUs: raise it or lower"
            f" replicas"
        )


def _check_parts(config: ServeConfig) -> None:
    scaler, decode = config.autoscaler, config.decode
    step, low, high = scaler.decode_step_npus, scaler.min_decode_npus, scaler.max_decode_npus
    if not step:
        return
    npus = decode.npus_per_replica
    size = f"npus_per_instance = {decode.npus_per_instance}" + (f" with ep = {decode.ep}" if decode.ep > 1 else "")
    if any(one % step for one in (low, npus, high)):
        raise ConfigError(
            f"[autoscaler] decode_step_npus = {step}: min_decode_npus = {low}, max_decode_npus = {high} and [decode]"
            f" {size} must be multiples of it"
        )
    if not low <= npus <= high:
        raise ConfigError(
            f"[decode] {size}, but [autoscaler] min_decode_npus and max_decode_npus allow {low} to {high}: change"
            f" either"
        )
    if decode.ep > 1:
        _check_group_parts(config, npus)


def _check_group_parts(config: ServeConfig, begun: int) -> None:
    """Groups of ranks grow and shrink by whole ranks, between those that they begin with and `most_ranks`."""
    scaler, rank = config.autoscaler, config.decode.npus_per_instance
    most = config.experts.most_ranks_of(config.decode.ep)
    if scaler.decode_step_npus % rank:
        raise ConfigError(
            f"[autoscaler] decode_step_npus = {scaler.decode_step_npus} is not a whole number of ranks, which have"
            f" npus_per_instance = {rank} NPUs: make it a multiple of that"
        )
    if scaler.min_decode_npus < begun:
        raise ConfigError(
            f"[autoscaler] min_decode_npus = {scaler.min_decode_npus}, but a group keeps the {begun} NPUs of the "
            f"ranks that it starts with, [decode] ep = {config.decode.ep}, however few it has: set it to {begun}"
        )
    if scaler.max_decode_npus > most * rank:
        raise ConfigError(
            f"[autoscaler] max_decode_npus = {scaler.max_decode_npus} makes more than {most} ranks of a group: set it"
            f" to {most * rank}, or raise [experts] most_ranks"
        )


def _check_step(name: str, pool: PoolConfig) -> None:
    # A running sequence feeds one token per step, so with more sequences than tokens some would starve. A prefill
    # instance runs its sequences one after the other, in chunks.
    if name != "prefill" and pool.max_sequences > pool.max_step_tokens:
        raise ConfigError(
            f"[{name}] a step of {pool.max_step_tokens} tokens cannot feed {pool.max_sequences} running sequences:"
            f" raise max_step_tokens or lower max_sequences"
        )


def _check_instance(name: str, pool: PoolConfig, nodes: tuple[NodeConfig, ...]) -> None:
    npus, memory = max(node.npus for node in nodes), max(node.ub_memory_mib for node in nodes)
    lower = "lower it" if not pool.is_group else "lower it or the ranks" if pool.has_roles else "lower it or ep"
    if pool.npus_per_replica > npus:
        raise ConfigError(
            f"[{name}] {_ranks_with(pool, 'npus_per_instance', 0)}, but the largest node has {npus} NPUs and an"
            f" instance must fit one node: {lower}"
        )
    if pool.ub_memory_per_replica_mib > memory:
        raise ConfigError(
            f"[{name}] {_ranks_with(pool, 'ub_memory_mib', 1)}, but the largest node has {memory} MiB of UB memory:"
            f" {lower} or raise [[cluster.nodes]] ub_memory_mib"
        )


def _ranks_with(pool: PoolConfig, key: str, index: int) -> str:
    """The ranks of an instance and one of their resources, for messages."""
    own, *others = (each[index] for each in pool.rank_resources)
    if others:
        of_experts = f"{pool.expert_ranks} expert ranks with {others[0]}"
        return f"{pool.attention_ranks} attention ranks with {own} and {of_experts} {key}"
    return f"{pool.ep} ranks with {key} = {own}" if pool.is_group else f"{key} = {own}"


def _check_simulation(config: ServeConfig) -> None:
    """Refuse settings that the simulated device determines itself, or that do not divide an instance."""
    check_division(roles_as_dies(config) if config.simulation.expert_dies else config)
    check_acceptance(config)
    if config.engine.executor != "simulated":
        return
    if config.hardware.hbm_per_die_mib:
        raise ConfigError(
            f"[hardware] hbm_per_die_mib = {config.hardware.hbm_per_die_mib} scales virtual dies down, but simulated"
            f" ones have their device's memory: set it to 0"
        )
    if config.engine.kv_dtype != "auto":
        raise ConfigError(
            f'[engine] kv_dtype = "{config.engine.kv_dtype}", but simulated blocks are as large as their device keeps'
            f' them: set it to "auto"'
        )
    if config.kvcache.ssd_mib:
        raise ConfigError(
            f"[kvcache] ssd_mib = {config.kvcache.ssd_mib}, but simulated blocks have no bytes to put on disk: set it"
            f" to 0"
        )


def _check_health(health: HealthConfig) -> None:
    if health.probe_late_s >= health.probe_lost_s:
        raise ConfigError(
            f"[health] probe_late_s = {health.probe_late_s:g} must be below probe_lost_s = {health.probe_lost_s:g}:"
            f" a path would be lost before it counts as saturated"
        )


def _check_kvcache(kvcache: KvCacheConfig) -> None:
    if kvcache.low_water > kvcache.high_water:
        raise ConfigError(
            f"[kvcache] low_water = {kvcache.low_water} is above high_water = {kvcache.high_water}: lower it"
        )
    if kvcache.put_timeout_s >= kvcache.write_lease_s:
        raise ConfigError(
            f"[kvcache] put_timeout_s = {kvcache.put_timeout_s:g} must be below write_lease_s ="
            f" {kvcache.write_lease_s:g}: a writer must give up before its room is given to others"
        )
    if kvcache.get_timeout_s >= kvcache.lease_s:
        raise ConfigError(
            f"[kvcache] get_timeout_s = {kvcache.get_timeout_s:g} must be below lease_s = {kvcache.lease_s:g}: a reader"
            f" must be done before what it found may be evicted"
        )
    if not _DIRECTORY.fullmatch(kvcache.directory):
        raise ConfigError('[kvcache] directory must be "embedded" or an address such as "redis://127.0.0.1:6379/0"')
    if kvcache.ssd_mib == 0 and (kvcache.write_through or kvcache.ssd_path):
        setting = "write_through" if kvcache.write_through else "ssd_path"
        raise ConfigError(f"[kvcache] {setting} needs an SSD tier: set ssd_mib above 0, or remove it")
    if kvcache.slab_kib * 1024 > kvcache.ub_memory_mib * MIB:
        raise ConfigError(
            f"[kvcache] slab_kib = {kvcache.slab_kib} is more than a whole memory server of"
            f" {kvcache.ub_memory_mib} MiB: lower it"
        )


def _check_responses(place: str) -> None:
    if not _RESPONSES.fullmatch(place):
        raise ConfigError(
            '[gateway] response_store must be "auto", "memory" or an address such as "redis://127.0.0.1:6379/0"'
        )


def _check_reuse(config: ServeConfig) -> None:
    if config.kvcache.replicas and not config.engine.prefix_reuse and not config.kvcache.models:
        raise ConfigError(
            f"[kvcache] replicas = {config.kvcache.replicas}, but with [engine] prefix_reuse = false and [kvcache]"
            f" models = false nothing would be kept there: set it to 0, or one of them to true"
        )


def replicas_at_start(config: ServeConfig) -> list[Need]:
    """Resources that all initial replicas need, by deployment. A group is placed on one node like an instance,
    together with its spares; if it may be on several nodes, each of its ranks is.
    """
    needs = []
    for name, pool in config.pools.items():
        spares = config.experts.spares if pool.is_group else 0
        if config.experts.across_nodes:
            sides = zip(pool.sides, pool.rank_resources, strict=True)
            needs += [Need(name, pool.replicas * (ranks + spares), *each) for ranks, each in sides]
        else:
            needs.append(Need(name, pool.replicas, *pool.resources_of_group(spares)))
    if config.kvcache.replicas:
        needs.append(Need("kvcache", config.kvcache.replicas, 0, config.kvcache.ub_memory_mib))
    return needs


def _check_totals(config: ServeConfig) -> None:
    nodes, needs = config.cluster.nodes, replicas_at_start(config)
    needed, offered = sum(n.replicas * n.npus for n in needs), config.cluster.npus
    if needed > offered:
        terms = " + ".join(f"{n.name} {n.replicas} x {n.npus}" for n in needs if n.npus)
        raise ConfigError(
            f"{terms} NPUs = {needed}, but the cluster offers {offered}: lower replicas or npus_per_instance, or add a"
            f" node"
        )
    needed, offered = sum(n.replicas * n.memory_mib for n in needs), sum(n.ub_memory_mib for n in nodes)
    if needed > offered:
        terms = " + ".join(f"{n.name} {n.replicas} x {n.memory_mib}" for n in needs)
        raise ConfigError(
            f"{terms} MiB of UB memory = {needed}, but the cluster offers {offered}: lower replicas or ub_memory_mib of"
            f" the pools, or raise ub_memory_mib of [[cluster.nodes]]"
        )


def _check_packing(config: ServeConfig) -> None:
    """Check that each replica finds its NPUs and its UB memory on one node; a sufficient total is not enough."""
    needs = replicas_at_start(config)
    if not can_pack(needs, config.cluster.nodes):
        wanted = ", ".join(
            f"{n.name} {n.replicas} x ({f'{n.npus} NPUs, ' if n.npus else ''}{n.memory_mib} MiB)" for n in needs
        )
        offered = ", ".join(f"{n.name} ({n.npus} NPUs, {n.ub_memory_mib} MiB)" for n in config.cluster.nodes)
        raise ConfigError(
            f"the nodes cannot hold {wanted}, each instance whole on one of {offered}: lower npus_per_instance or"
            f" ub_memory_mib, or add a node"
        )
