"""The cost model of a configuration's simulated NPUs: device, model and engine of `[simulation]`."""

from dataclasses import replace

from hardware.cost.cost_model import CostModel
from hardware.cost.device_file import load_device
from hardware.cost.device_model import DeviceModel
from hardware.cost.engine_file import load_engine
from hardware.cost.model_config import load_shape
from hardware.cost.model_shape import ModelShape
from hardware.cost.parallelism import Parallelism
from hardware.cost.served_shape import served_shape
from serving.config.serve import ServeConfig
from serving.config.simulation import SimulationConfig


def simulated_cost(config: ServeConfig) -> CostModel:
    """Cost model of a configuration.

    Raises: SpecError if device, model or engine cannot be read, drafts are configured for a model without a draft
        layer, the device has no prices for the format of weights or KV, or the model or the device does not support
        the division of the work.
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
    return served_shape(shape, device or load_device(simulation.device), asked=bool(weights))
