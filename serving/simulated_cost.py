"""The cost model that a configuration's simulated NPUs follow: device, model and engine of `[simulation]`."""

from hardware.cost.cost_model import CostModel
from hardware.cost.device_file import load_device
from hardware.cost.engine_file import load_engine
from hardware.cost.model_config import load_shape
from serving.config.serve import ServeConfig


def simulated_cost(config: ServeConfig) -> CostModel:
    """Cost model of a configuration.

    Raises: SpecError if device, model or engine cannot be read, or drafts are configured of a model that has none.
    Effects: reads their files.
    """
    simulation = config.simulation
    shape = load_shape(config.model.path)
    shape.check_drafts(simulation.drafts)
    engine = load_engine(simulation.engine) if simulation.engine else None
    return CostModel(load_device(simulation.device), shape, engine)
