"""Simulated NPUs of `[simulation]`: their cost model, the bytes of accounted KV, the virtual NPU."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from hardware.cost.cost_model import CostModel
from hardware.cost.device_file import load_device
from hardware.cost.device_model import DeviceModel
from hardware.cost.drafter import with_drafter
from hardware.cost.engine_profile import load_engine
from hardware.cost.model_config import load_shape
from hardware.cost.model_shape import ModelShape, served_shape
from hardware.cost.parallelism import Parallelism
from hardware.spec.catalog import CLOUDMATRIX_NODE
from hardware.spec.supernode import NpuSpec
from serving.config.serve import ServeConfig
from serving.config.simulation import SimulationConfig
from serving.errors import ConfigError

# The cost model of a configuration's simulated NPUs: device, model and engine of `[simulation]`.


def simulated_cost(config: ServeConfig) -> CostModel:
    """Cost model of a configuration.

    Raises: SpecError if device, model or engine cannot be read, drafts are configured for a model without a draft
        layer or draft model, the device has no prices for the format of weights or KV, or the model or the device does
        not support the division of the work.
    Effects: reads their files.
    """
    simulation = config.simulation
    device = load_device(simulation.device)
    shape = simulated_shape(config, device)
    shape.check_drafts(simulation.drafts)
    engine = load_engine(simulation.engine) if simulation.engine else None
    decode, prefill = divisions(simulation)
    if simulation.routing:
        decode = replace(decode, redundant_slots=config.experts.redundant)
    return CostModel(device, shape, engine, decode=decode, prefill=prefill)


def divisions(simulation: SimulationConfig) -> tuple[Parallelism, Parallelism]:
    """Division of the work in decode and in prefill instances.

    Raises: SpecError for a layout that contradicts a degree.
    """
    redundant = None if simulation.redundant_experts < 0 else simulation.redundant_experts
    layout = None if simulation.prefill_attention == "device" else simulation.prefill_attention
    return (
        Parallelism(
            simulation.decode_attention_tp,
            simulation.head_tp,
            expert_dies=simulation.expert_dies,
            domains=simulation.domains,
            expert_tp=simulation.expert_tp,
            redundant_experts=redundant,
            trampolines=simulation.trampolines,
        ),
        Parallelism(
            simulation.prefill_attention_tp,
            simulation.head_tp,
            layout,
            expert_tp=simulation.expert_tp,
            redundant_experts=redundant,
        ),
    )


def simulated_shape(config: ServeConfig, device: DeviceModel | None = None) -> ModelShape:
    """Shape of a configuration's model, in the formats of `[simulation]`.

    Args:
        device: of `[simulation]`; None = read it.
    Raises: SpecError as `simulated_cost`.
    Effects: reads its files.
    """
    simulation = config.simulation
    weights = "" if simulation.weights == "auto" else simulation.weights
    kv = None if simulation.kv == "auto" else simulation.kv
    shape = load_shape(config.model.path, weights=weights, kv=kv)
    served = served_shape(shape, device or load_device(simulation.device), asked=bool(weights))
    return with_drafter(served, simulation.draft_model)


# KV that is accounted, not filled: the real bytes that represent the blocks of a simulated model.
#
# Every size in the configuration is that of the simulated system. Shared memory contains only a few bytes per block,
# enough for a stamp and a checksum, so that handoffs and the KV-cache pool have data to move and verify.

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


# Virtual NPU of a simulated device's package.


def npu_of(device: DeviceModel) -> NpuSpec:
    """Virtual NPU that represents one of a device's packages.

    Raises: ConfigError if it has another number of dies than a virtual NPU.
    """
    npu = CLOUDMATRIX_NODE.npu
    if device.die.per_npu != npu.dies:
        raise ConfigError(
            f"[simulation] device = {device.name!r} has {device.die.per_npu:g} dies per NPU; live instances are made of"
            f" NPUs with {npu.dies}: use an Ascend device, or simulate in virtual time"
        )
    return npu.with_hbm_per_die(int(device.die.hbm_bytes))
