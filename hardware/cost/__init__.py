"""How long steps and transfers take on a device: the cost model, its device files and its calibration."""

from hardware.cost.cost_model import CostModel, mtp_tokens_per_step
from hardware.cost.device_file import device_names, load_device
from hardware.cost.device_model import DeviceModel
from hardware.cost.loads import CostPart, DecodeLoad, PredictedStep, PrefillLoad
from hardware.cost.memory_plan import HbmPlan
from hardware.cost.model_config import load_shape, shape_from_config
from hardware.cost.model_shape import DEEPSEEK_R1, ModelShape
from hardware.cost.step_tables import DecodeTable, PrefillTable

__all__ = [
    "DEEPSEEK_R1",
    "CostModel",
    "CostPart",
    "DecodeLoad",
    "DecodeTable",
    "DeviceModel",
    "HbmPlan",
    "ModelShape",
    "PredictedStep",
    "PrefillLoad",
    "PrefillTable",
    "device_names",
    "load_device",
    "load_shape",
    "mtp_tokens_per_step",
    "shape_from_config",
]
