"""KV that is accounted, not filled: how many real bytes stand for the blocks of a simulated model.

Every size of the configuration is that of the simulated system. What really lies in shared memory is a few bytes per
block, enough for a stamp and a checksum, so that handoffs and the KV-cache pool move and verify something.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from serving.config.serve import ServeConfig
from serving.simulated_cost import simulated_shape

LEAST_BYTES = 64
"""Of one real block; also what its size is rounded up to."""


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
        """Real bytes for so many of the simulated system, so that as many blocks fit."""
        return nbytes // self.block_bytes * self.real_bytes

    def accounted_facts(self, facts: Mapping[str, Any]) -> dict[str, Any]:
        """The facts of a memory server as those of the simulated system: all that counts bytes is scaled up."""
        return {key: self._accounted(key, value) for key, value in facts.items()}

    def _accounted(self, key: str, value: object) -> object:
        if isinstance(value, Mapping):
            return self.accounted_facts(value)
        if isinstance(value, int) and (key.endswith("_bytes") or key.startswith("bytes_")):
            return value * self.block_bytes // self.real_bytes
        return value


def accounted_kv(config: ServeConfig) -> AccountedKv | None:
    """The block size of a simulated model; None where KV is real.

    Raises: SpecError if the model folder holds no shape that the cost model knows, or the device cannot be read.
    Effects: reads the model's config.json and the device's file.
    """
    if config.engine.executor != "simulated":
        return None
    token = simulated_shape(config).kv_token_bytes()
    block = token * config.engine.block_tokens
    units = max(1, -(-block // (config.simulation.kv_shrink * LEAST_BYTES)))
    return AccountedKv(block, units * LEAST_BYTES, token)
