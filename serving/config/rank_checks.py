"""Instances that are groups of ranks: checks of their numbers, executor and device; their dies in virtual time."""

from dataclasses import replace

from serving.config.cluster import DIES_PER_NPU
from serving.config.engine import PoolConfig
from serving.config.packing import check_division
from serving.config.serve import ServeConfig
from serving.errors import ConfigError


def check_ranks(name: str, pool: PoolConfig, config: ServeConfig) -> None:
    """Check a group's executor and device, since ranks need native code on CPUs, and its number of ranks.

    Args:
        name: of the pool.
    Raises: ConfigError.
    """
    _check_roles(name, pool, config)
    if not pool.is_group:
        return
    executor, device = config.engine.executor, config.model.device
    ranks = f"[{name}] {_named(pool)}"
    if executor == "torch" or (executor == "simulated" and not _in_virtual_time(name, pool)):
        without = "remove both" if pool.has_roles else "ep to 1"
        raise ConfigError(
            f'{ranks}, but [engine] executor = "{executor}" has no ranks: set it to "native" or "auto", or {without}'
        )
    if device not in ("auto", "cpu"):
        need = "need" if pool.has_roles else "needs"
        raise ConfigError(f'{ranks} {need} [model] device = "cpu", and it is "{device}": change either')
    _check_shared_across_nodes(ranks, pool, config)
    spares, most = config.experts.spares, config.experts.most_ranks_of(*pool.sides)
    if max(pool.sides) + spares > most:
        raise ConfigError(
            f"{ranks} with [experts] spares = {spares} makes more than {most} ranks{' of a kind' * pool.has_roles}:"
            f" raise most_ranks to {max(pool.sides) + spares}"
        )


def _check_shared_across_nodes(ranks: str, pool: PoolConfig, config: ServeConfig) -> None:
    """Refuse float32 results of shared experts among BF16 ones on a connection, whose results have one size."""
    experts = config.experts
    if (
        pool.has_roles
        and experts.across_nodes
        and experts.shared == "experts"
        and config.model.expert_results != "float32"
    ):
        raise ConfigError(
            f'{ranks} with [experts] across_nodes and shared = "experts", but [model] expert_results ='
            f' "{config.model.expert_results}", and results of shared experts are float32: set shared = "attention" or'
            ' expert_results = "float32"'
        )


def _in_virtual_time(name: str, pool: PoolConfig) -> bool:
    """Whether virtual time knows the two kinds of ranks; `check_live_ranks` then refuses them in a system that runs."""
    return name == "decode" and pool.has_roles


def check_live_ranks(config: ServeConfig) -> None:
    """Refuse ranks of two kinds of simulated engines in a system that runs.

    Raises: ConfigError.
    """
    if config.engine.executor == "simulated" and "decode" in config.pools and config.decode.has_roles:
        raise ConfigError(
            f'[decode] {_named(config.decode)}, but [engine] executor = "simulated" has no ranks in a system that runs,'
            ' only in `cloudmatrix simulate`: set it to "native" or "auto", or remove both'
        )


def _check_roles(name: str, pool: PoolConfig, config: ServeConfig) -> None:
    """Check that both kinds of ranks are given, in place of `ep`, and that windows have room for them."""
    for one in ("attention_ranks", "expert_ranks", "expert_npus", "expert_ub_memory_mib"):
        other = "expert_ranks" if one == "attention_ranks" else "attention_ranks"
        if getattr(pool, one) and not getattr(pool, other):
            raise ConfigError(f"[{name}] {one} = {getattr(pool, one)} without {other}: give both, or neither")
    if not pool.has_roles:
        return
    if pool.ep > 1:
        raise ConfigError(
            f"[{name}] ep = {pool.ep} beside {_named(pool)}: the ranks of ep have both roles; remove one or the other"
        )
    room = config.experts.room_of(pool.sides)
    if config.experts.most_ranks_of(*pool.sides) > room:
        raise ConfigError(
            f"[experts] most_ranks = {config.experts.most_ranks}, but windows have room for {room} ranks of a kind"
            f" with [{name}] {_named(pool)}: lower it to {room}"
        )
    if name == "decode" and config.autoscaler.policy != "none" and config.autoscaler.decode_step_npus:
        raise ConfigError(
            f"[autoscaler] decode_step_npus = {config.autoscaler.decode_step_npus} resizes groups of one kind of ranks,"
            f" not [decode] {_named(pool)}: set it to 0; `cloudmatrix experts resize` changes either number"
        )


def roles_as_dies(config: ServeConfig) -> ServeConfig:
    """The configuration that virtual time simulates: a decode instance with attention ranks and expert ranks as one
    process with all their NPUs, of which the expert ranks' dies are `[simulation] expert_dies`. Limits of an attention
    rank are multiplied by the number of attention ranks.

    Returns: the configuration itself if its decode instances have no such ranks.
    Raises: ConfigError if `expert_dies` is another number, or as `check_division`.
    """
    decode, simulation = config.decode, config.simulation
    if config.one_pool or not decode.has_roles:
        return config
    ranks, npus = decode.attention_ranks, decode.rank_resources[1][0]
    dies = decode.expert_ranks * npus * DIES_PER_NPU
    if simulation.expert_dies not in (0, dies):
        raise ConfigError(
            f"[simulation] expert_dies = {simulation.expert_dies}, but [decode] {_named(decode)} with {npus} NPUs for"
            f" each expert rank make {dies}: set it to 0"
        )
    whole = replace(
        decode.as_one_process(),
        npus_per_instance=decode.npus_per_replica,
        max_step_tokens=decode.max_step_tokens * ranks,
        max_sequences=decode.max_sequences * ranks,
        max_waiting=decode.max_waiting * ranks,
    )
    divided = replace(config, decode=whole, simulation=replace(simulation, expert_dies=dies))
    try:
        check_division(divided)
    except ConfigError as error:
        raise ConfigError(f"{of_roles(config)}{error}") from None
    return divided


def of_roles(config: ServeConfig) -> str:
    """Start of an error message about the dies that `roles_as_dies` makes; empty without such ranks."""
    has = config.decode.has_roles and not config.one_pool
    return f"[decode] {_named(config.decode)} in virtual time: " if has else ""


def _named(pool: PoolConfig) -> str:
    if pool.has_roles:
        return f"attention_ranks = {pool.attention_ranks} and expert_ranks = {pool.expert_ranks}"
    return f"ep = {pool.ep}"
