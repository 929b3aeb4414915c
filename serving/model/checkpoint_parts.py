"""Products, norms and tensors of a model by their checkpoint names, for a weight bank.

Every final tensor goes through a `WeightBank`, so reading is deferred until a bank requests it: the same code assembles
a model from an image without a checkpoint.
"""

import torch
from torch import Tensor

from serving.model.architecture import Architecture
from serving.model.checkpoint import TensorSource
from serving.model.linear import Linear, LinearWeight, fuse
from serving.model.norm import RmsNorm
from serving.model.weight_bank import WeightBank


class CheckpointParts:
    """Parts of one checkpoint with checked names and shapes.

    Args:
        dtype: of all parts except the gates, which are float32.
    """

    def __init__(
        self, config: Architecture, source: TensorSource, bank: WeightBank, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.config = config
        self.source = source
        self.bank = bank
        self.dtype = dtype
        self.device = device

    def linear(self, name: str) -> Linear:
        """A product as stored in the checkpoint; `name` without `.weight`."""
        return self.bank.linear(name, lambda: self.weight(name))

    def weight(self, name: str) -> LinearWeight:
        """A product's weight, read immediately."""
        bias = self.read(name + ".bias") if name + ".bias" in self.source.names else None
        int8 = self.source.int8(name + ".weight", self.device)
        if int8 is not None:
            return LinearWeight(int8.weight, bias, int8.scale)
        return LinearWeight(self.read(name + ".weight"), bias)

    def norm(self, name: str, eps: float | None = None) -> RmsNorm:
        """A norm; `eps` if it differs from the model's."""
        return RmsNorm(self.tensor(name), self.config.rms_norm_eps if eps is None else eps)

    def tensor(self, name: str, dtype: torch.dtype | None = None) -> Tensor:
        """A tensor as stored in the checkpoint."""
        return self.bank.tensor(name, lambda: self.read(name, dtype))

    def read(self, name: str, dtype: torch.dtype | None = None) -> Tensor:
        """Read a tensor immediately, by default in the model's dtype."""
        return self.source.tensor(name, dtype or self.dtype, self.device)


def fused(dtype: torch.dtype, *parts: LinearWeight) -> LinearWeight:
    """One product in place of several. If only some are INT8, they are dequantised, since a product takes one input."""
    if len({part.scale is None for part in parts}) == 1:
        return fuse(*parts)
    return fuse(*(floating(part, dtype) for part in parts))


def floating(given: LinearWeight, dtype: torch.dtype) -> LinearWeight:
    """The same product with a floating-point weight."""
    if given.scale is None:
        return given
    return LinearWeight((given.weight * given.scale.unsqueeze(1)).to(dtype), given.bias)
