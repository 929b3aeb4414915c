"""Whether the values of a configuration fit each other; every refusal is one line that says what to change."""

from dataclasses import dataclass

from serving.config.cluster import NodeConfig
from serving.config.model import ModelConfig
from serving.config.pool import PoolConfig
from serving.config.serve import ServeConfig
from serving.errors import ConfigError


def check_consistency(config: ServeConfig, source: str) -> None:
    """Checks what one value alone cannot show: that the topology can run.

    Args:
        source: the file's name, to begin each message.
    Raises: ConfigError if two nodes share a name, a step cannot feed the sequences that it may hold, an instance is
        larger than a node, or all instances together are larger than the cluster.
    Effects: none.
    """
    try:
        _check_names(config.cluster.nodes)
        for name, pool in config.pools.items():
            _check_step(name, pool)
            _check_instance(name, pool, config.cluster.nodes)
        _check_totals(config)
        _check_packing(config)
    except ConfigError as error:
        raise ConfigError(f"{source}: {error}") from None


def check_model_folder(model: ModelConfig) -> None:
    """Checks that the model folder looks like a checkpoint; reading it is the loader's business.

    Raises: ConfigError if there is no such folder or it holds no config.json.
    Effects: looks at the folder.
    """
    if not model.path.is_dir():
        raise ConfigError(f"no model folder {model.path}: name one with --model or [model] path")
    if not (model.path / "config.json").is_file():
        raise ConfigError(
            f"{model.path} holds no config.json: --model or [model] path must name a Hugging Face checkpoint folder"
        )


def _check_names(nodes: tuple[NodeConfig, ...]) -> None:
    names = [node.name for node in nodes]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"two [[cluster.nodes]] are called {name!r}: give each its own name")


def _check_step(name: str, pool: PoolConfig) -> None:
    # A running sequence feeds one token per step, so that more sequences than tokens would starve. A prefill instance
    # runs its sequences one after the other, in chunks.
    if name != "prefill" and pool.max_sequences > pool.max_step_tokens:
        raise ConfigError(
            f"[{name}] a step of {pool.max_step_tokens} tokens cannot feed {pool.max_sequences} running sequences:"
            f" raise max_step_tokens or lower max_sequences"
        )


def _check_instance(name: str, pool: PoolConfig, nodes: tuple[NodeConfig, ...]) -> None:
    npus, memory = max(node.npus for node in nodes), max(node.ub_memory_mib for node in nodes)
    if pool.npus_per_instance > npus:
        raise ConfigError(
            f"[{name}] npus_per_instance = {pool.npus_per_instance}, but the largest node has {npus} NPUs and an"
            f" instance must fit one node: lower it"
        )
    if pool.ub_memory_mib > memory:
        raise ConfigError(
            f"[{name}] ub_memory_mib = {pool.ub_memory_mib}, but the largest node has {memory} MiB of UB memory:"
            f" lower it or raise [[cluster.nodes]] ub_memory_mib"
        )


def _check_totals(config: ServeConfig) -> None:
    nodes, pools = config.cluster.nodes, config.pools
    needed, offered = sum(p.replicas * p.npus_per_instance for p in pools.values()), config.cluster.npus
    if needed > offered:
        terms = " + ".join(f"{name} {p.replicas} x {p.npus_per_instance}" for name, p in pools.items())
        raise ConfigError(
            f"{terms} NPUs = {needed}, but the cluster offers {offered}: lower replicas or npus_per_instance, or add a"
            f" node"
        )
    needed, offered = sum(p.replicas * p.ub_memory_mib for p in pools.values()), sum(n.ub_memory_mib for n in nodes)
    if needed > offered:
        terms = " + ".join(f"{name} {p.replicas} x {p.ub_memory_mib}" for name, p in pools.items())
        raise ConfigError(
            f"{terms} MiB of UB memory = {needed}, but the cluster offers {offered}: lower replicas or ub_memory_mib of"
            f" the pools, or raise ub_memory_mib of [[cluster.nodes]]"
        )


@dataclass(frozen=True, slots=True)
class _Room:
    """What a node has left."""

    npus: int
    memory_mib: int

    def holds(self, pool: PoolConfig) -> int:
        """How many instances of a pool fit."""
        return min(self.npus // pool.npus_per_instance, self.memory_mib // pool.ub_memory_mib, pool.replicas)

    def less(self, pool: PoolConfig, instances: int) -> "_Room":
        """The room after that many instances of a pool."""
        return _Room(self.npus - instances * pool.npus_per_instance, self.memory_mib - instances * pool.ub_memory_mib)


def _check_packing(config: ServeConfig) -> None:
    """Enough in total is not enough: each instance must find its NPUs and its UB memory on one node.

    Exact for the two pools there are: node by node, it keeps the most instances of the second pool for every number of
    instances of the first.
    """
    first, *rest = config.pools.values()
    best = {0: 0}
    for node in config.cluster.nodes:
        room = _Room(node.npus, node.ub_memory_mib)
        reached: dict[int, int] = {}
        for placed, others in best.items():
            for more in range(min(room.holds(first), first.replicas - placed) + 1):
                total = others + sum(room.less(first, more).holds(pool) for pool in rest)
                reached[placed + more] = max(reached.get(placed + more, 0), total)
        best = reached
    if best.get(first.replicas, -1) < sum(pool.replicas for pool in rest):
        wanted = ", ".join(
            f"{name} {p.replicas} x ({p.npus_per_instance} NPUs, {p.ub_memory_mib} MiB)"
            for name, p in config.pools.items()
        )
        offered = ", ".join(f"{n.name} ({n.npus} NPUs, {n.ub_memory_mib} MiB)" for n in config.cluster.nodes)
        raise ConfigError(
            f"the nodes cannot hold {wanted}, each instance whole on one of {offered}: lower npus_per_instance or"
            f" ub_memory_mib, or add a node"
        )
