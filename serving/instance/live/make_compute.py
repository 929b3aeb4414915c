"""Choice of an instance's compute, by the configuration.

Only the chosen one is imported: a simulated replica never pays for the tensor library.
"""

from serving.config.serve import ServeConfig
from serving.instance.live.compute import Compute
from serving.instance.live.pool_access import PoolAccess
from serving.values.instance_place import InstancePlace


def make_compute(config: ServeConfig, place: InstancePlace, access: PoolAccess | None) -> Compute:
    """The compute that `[engine] executor` names, with its model and its dies' memory booked; may be slow.

    Raises: ModelError, ConfigError, HardwareError (no room in HBM).
    Effects: those of the implementation.
    """
    if config.engine.executor == "simulated":
        from serving.instance.live.compute_simulated import SimulatedCompute

        return SimulatedCompute(config, place)
    from serving.instance.live.compute_torch import TorchCompute

    return TorchCompute(config, place, access)
