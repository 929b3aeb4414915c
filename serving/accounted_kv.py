"""KV that is accounted, not filled: the real bytes that represent the blocks of a simulated model.

Every size in the configuration is that of the simulated system. Shared memory contains only a few bytes per block,
enough for a stamp and a checksum, so that handoffs and the KV-cache pool have data to move and verify.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from serving.config.serve import ServeConfig
from serving.simulated_cost import simulated_shape

LEAST_BYTES = 64
"""Size of one real block, and the unit to which it is rounded up."""


@dataclass(frozen=True, slots=True)
class AccountedKv:
    """Size of one KV block.

    Args:
        block_bytes: in the simulated system.
        real_bytes: in shared memory.
        token_bytes: of one token, all layers, in the simulated system.
    """

    block_bytes: int
    real_bytes: int
    token_bytes: int

    def real(self, nbytes: int) -> int:
        """Real bytes for a number of simulated bytes, so that as many blocks fit."""
        return nbytes // self.block_bytes * self.real_bytes

    def accounted_facts(self, facts: Mapping[str, Any]) -> dict[str, Any]:
        """A memory server's facts scaled to the simulated system: all byte counts are scaled up."""
        return {key: self._accounted(key, value) for key, value in facts.items()}

    def _accounted(self, key: str, value: object) -> object:
        if isinstance(value, Mapping):
            return self.accounted_facts(value)
        if isinstance(value, int) and (key.endswith("_bytes") or key.startswith("bytes_")):
            return value * self.block_bytes // self.real_bytes
        return value


def accounted_kv(config: ServeConfig) -> AccountedKv | None:
    """The block size of a simulated model; None if KV is real.

    Raises: SpecError if the cost model does not support the model's shape, or the device file cannot be read.
    Effects: reads the model's config.json and the device's file.
    """
    if config.engine.executor != "simulated":
        return None
    token = simulated_shape(config).kv_token_bytes()
    block = token * config.engine.block_tokens
    units = max(1, -(-block // (config.simulation.kv_shrink * LEAST_BYTES)))
    return AccountedKv(block, units * LEAST_BYTES, token)
