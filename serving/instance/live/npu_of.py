"""Virtual NPU of a simulated device's package."""

from hardware.cost.device_model import DeviceModel
from hardware.spec.catalog import CLOUDMATRIX_NODE
from hardware.spec.npu import NpuSpec
from serving.errors import ConfigError


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
