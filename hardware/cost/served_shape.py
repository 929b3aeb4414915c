"""A model as one device serves it: its shape, with the formats that the device can multiply."""

from dataclasses import replace

from hardware.cost.device_model import DeviceModel
from hardware.cost.model_shape import ModelShape
from hardware.errors import SpecError


def served_shape(shape: ModelShape, device: DeviceModel, *, asked: bool) -> ModelShape:
    """The model on a device.

    An FP8 checkpoint becomes W8A8 on a device without FP8 products, unless FP8 was requested explicitly.

    Args:
        asked: a person named the weights' format.
    Raises: SpecError naming what cannot be priced.
    """
    if not asked and not device.die.fp8_flops_per_s:
        shape = replace(shape, formats=shape.formats.on_device_without_fp8())
    check_formats(shape, device)
    return shape


def check_formats(shape: ModelShape, device: DeviceModel) -> None:
    """Refuse formats that cannot be priced on a device.

    Raises: SpecError naming them.
    """
    if shape.formats.kv == "fp8":
        raise SpecError(f"model {shape.name}: a KV cache in FP8 is not priced; name bf16 or int8")
    for one in (shape.formats.attention, shape.formats.experts):
        device.die.products_per_s(one.products, device.name)
