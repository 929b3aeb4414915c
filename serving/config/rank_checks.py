"""Checks of instances that are groups of ranks: their numbers, executor and device."""

from serving.config.engine import PoolConfig
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
    if executor in ("torch", "simulated"):
        without = "remove both" if pool.has_roles else "ep to 1"
        raise ConfigError(
            f'{ranks}, but [engine] executor = "{executor}" has no ranks: set it to "native" or "auto", or {without}'
        )
    if device not in ("auto", "cpu"):
        need = "need" if pool.has_roles else "needs"
        raise ConfigError(f'{ranks} {need} [model] device = "cpu", and it is "{device}": change either')
    if config.experts.across_nodes and config.experts.micro_batches == "2":
        raise ConfigError(
            f'{ranks} with [experts] across_nodes has one micro-batch, and [experts] micro_batches = "2": set it to '
            '"auto" or "1"'
        )
    spares, most = config.experts.spares, config.experts.most_ranks_of(*pool.sides)
    if max(pool.sides) + spares > most:
        raise ConfigError(
            f"{ranks} with [experts] spares = {spares} makes more than {most} ranks{' of a kind' * pool.has_roles}:"
            f" raise most_ranks to {max(pool.sides) + spares}"
        )


def _check_roles(name: str, pool: PoolConfig, config: ServeConfig) -> None:
    """Check that both kinds of ranks are given, in place of `ep`, and that windows have room for them."""
    for one in ("attention_ranks", "expert_ranks", "expert_npus", "expert_ub_memory_mib"):
        other = "expert_ranks" if one == "attention_ranks" else "attention_ranks"
        if getattr(pool, one) and not getattr(pool, other):
            raise ConfigError(f"[{name}] {one} = {getattr(pool, one)} without {other}: give both, or neither")
    if not pool.has_roles:
        return
    if config.experts.across_nodes:
        raise ConfigError(
            f"[experts] across_nodes with [{name}] {_named(pool)} is not supported yet: all their ranks are on one "
            "node; set it to false, or use ep"
        )
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


def _named(pool: PoolConfig) -> str:
    if pool.has_roles:
        return f"attention_ranks = {pool.attention_ranks} and expert_ranks = {pool.expert_ranks}"
    return f"ep = {pool.ep}"
