"""An engine's own kernels: values that replace the device file's calibration, by what they are kernels of.

The device file is fitted to one engine. Another one has core attention, sparse attention or products of packed weights
of its own, which its profile lists under `[kernels.KIND]`, each value with its source as in a device file:

    [kernels.latent]
    core_utilisation = { value = 0.8675, status = "published", source = "..." }
"""

from collections.abc import Callable, Mapping
from dataclasses import fields, replace

from hardware.cost.attention import GroupedAttentionSizes, LatentAttentionSizes
from hardware.cost.device_file import check_keys, check_shares, read_constant
from hardware.cost.device_model import Calibration, Constant, DeviceModel
from hardware.cost.model_shape import ModelShape
from hardware.errors import SpecError

EngineKernels = Mapping[str, Mapping[str, Constant]]
"""Values of the calibration by name, by kind of kernels; a later kind of `KINDS` overrides an earlier one."""

KINDS: Mapping[str, Callable[[ModelShape], bool]] = {
    "all": lambda shape: True,
    "latent": lambda shape: isinstance(shape.attention, LatentAttentionSizes),
    "grouped": lambda shape: isinstance(shape.attention, GroupedAttentionSizes),
    "sparse": lambda shape: shape.indexer is not None,
    "packed": lambda shape: shape.formats.experts.bits < 8,
}
"""Which models have kernels of a kind: by attention, and by weights of fewer than 8 bits."""


def read_kernels(engine: str, raw: object) -> EngineKernels:
    """The kernels of a profile's file.

    Args:
        engine: its name, for messages.
    Raises: SpecError naming the first wrong kind, key or value.
    """
    if not isinstance(raw, dict):
        raise SpecError(f"engine {engine}: kernels must be tables, written [kernels.KIND]")
    check_keys(f"engine {engine}", "kernels.", raw, (), optional=tuple(KINDS))
    names = tuple(field.name for field in fields(Calibration))
    found = {}
    for kind, values in raw.items():
        if not isinstance(values, dict):
            raise SpecError(f"engine {engine}: kernels.{kind} must be a table, written [kernels.{kind}]")
        check_keys(f"engine {engine}", f"kernels.{kind}.", values, (), optional=names)
        found[kind] = {
            key: read_constant(f"engine {engine}", f"calibration.{key}", value) for key, value in values.items()
        }
    return found


def kernels_text(kernels: EngineKernels) -> list[str]:
    """Lines of a profile's file, which `read_kernels` reads back."""
    lines = []
    for kind, values in kernels.items():
        lines += ["", f"[kernels.{kind}]"]
        for key, one in values.items():
            lines.append(f'{key} = {{ value = {one.value:.6g}, status = "{one.status}", source = "{one.source}" }}')
    return lines


def with_kernels(device: DeviceModel, kernels: EngineKernels, shape: ModelShape) -> DeviceModel:
    """A device with an engine's kernels for one model.

    Raises: SpecError for a share above 1.
    """
    own: dict[str, float] = {}
    for kind, applies in KINDS.items():
        if applies(shape):
            own |= {key: one.value for key, one in kernels.get(kind, {}).items()}
    if not own:
        return device
    calibration = replace(device.calibration, **own)
    check_shares("engine's kernels", calibration)
    return replace(device, calibration=calibration)
