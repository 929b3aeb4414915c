"""Checks whether a model's weights fit: on the dies of each pool's instances, and in this machine's memory."""

import math
import os

from hardware.units import GIB, MIB
from serving.config.serve import ServeConfig
from serving.errors import ConfigError

_HBM_STEP_MIB = 64


def require_room(config: ServeConfig, weights: int, block: int, *, here: bool) -> None:
    """Require that the dies of each pool's instances hold the weights and one KV block.

    Args:
        weights: bytes of all weights, in the type used for computing.
        block: bytes of a KV block.
        here: whether the dies' memory is this machine's.
    Raises: ConfigError if they do not, with a sufficient die size; if this machine cannot hold the weights.
    """
    hardware, name = config.hardware, config.model.served_name
    enough = _enough_mib(config, weights)
    if here and weights > machine_bytes():
        raise ConfigError(
            f"the weights of {name} take {weights / GIB:,.1f} GiB, and this machine has"
            f" {machine_bytes() / GIB:,.1f} GiB of memory: use a smaller model, one in INT8, or larger hosts"
            f" (--address) with dies of {_gib(enough)} GiB"
        )
    usable = hardware.hbm_per_die_bytes * (1 - hardware.workspace_share)
    for pool_name, pool in config.pools.items():
        dies = pool.dies_per_instance
        if -(-weights // dies) + block > usable:
            raise ConfigError(
                f"the weights of {name} take {weights / GIB:,.3g} GiB, and an instance of the {pool_name} pool has"
                f" {dies} dies of {hardware.hbm_per_die_bytes / GIB:,.3g} GiB; with dies of {_gib(enough)} GiB they"
                f" fit: add --set hardware.hbm_per_die_mib={enough}, or raise [{pool_name}] npus_per_instance"
            )


def machine_bytes() -> int:
    """Memory of this machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _enough_mib(config: ServeConfig, weights: int) -> int:
    """A die size with which every pool's instances hold the weights, and KV blocks in all their UB memory."""
    wanted = max(
        (weights / MIB + pool.ub_memory_mib) / pool.dies_per_instance / (1 - config.hardware.workspace_share)
        for pool in config.pools.values()
    )
    return math.ceil(wanted / _HBM_STEP_MIB) * _HBM_STEP_MIB


def _gib(mib: int) -> str:
    return f"{mib / 1024:,g}"
