"""Creates an instance's compute according to the configuration.

Only the selected one is imported: a simulated replica never loads the tensor library.
"""

from serving.config.serve import ServeConfig
from serving.instance.live.compute import Compute
from serving.instance.live.pool_access import PoolAccess
from serving.values.instance_place import InstancePlace


def make_compute(config: ServeConfig, place: InstancePlace, access: PoolAccess | None) -> Compute:
    """The compute for `[engine] executor`, with its model and its dies' memory booked; may be slow.

    Raises: ModelError, ConfigError, HardwareError (too little HBM).
    Effects: those of the implementation.
    """
    if config.engine.executor == "simulated":
        from serving.instance.live.compute_simulated import SimulatedCompute

        return SimulatedCompute(config, place)
    from serving.instance.live.compute_torch import TorchCompute

    return TorchCompute(config, place, access)
