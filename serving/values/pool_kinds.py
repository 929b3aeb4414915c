"""Kinds of engine pools and their facts. Code asks for a fact; only the code of one kind alone names it."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class PoolKind:
    """One kind of engine pool.

    Attributes:
        name: of the pool's deployment and of its section in the configuration.
        mode: the `[serving] mode` that starts it.
        prefills, decodes: phases that its instances run.
        bounds: `[autoscaler] min_` and `max_` keys with this ending limit its replicas.
    """

    name: str
    mode: str
    prefills: bool
    decodes: bool
    bounds: Literal["prefill", "decode"]


POOL_KINDS = {
    kind.name: kind
    for kind in (
        PoolKind("prefill", "disaggregated", prefills=True, decodes=False, bounds="prefill"),
        PoolKind("decode", "disaggregated", prefills=False, decodes=True, bounds="decode"),
        PoolKind("aggregated", "aggregated", prefills=True, decodes=True, bounds="decode"),
    )
}
"""By name; pools of one mode in the order in which a request passes them."""
ENGINE_POOLS = tuple(POOL_KINDS)


def kinds_of(mode: str) -> tuple[PoolKind, ...]:
    """Kinds of pools that a `[serving] mode` starts."""
    return tuple(kind for kind in POOL_KINDS.values() if kind.mode == mode)
