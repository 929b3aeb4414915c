"""Routed experts that are not in this process's model: their weights are in slots, or on other ranks."""

from torch import Tensor

from serving.model.heads import HeadLinear
from serving.model.linear import Linear
from serving.model.native.layout import NativeLinear
from serving.model.native.panels import PanelLinear
from serving.model.weight_bank import BuildLinear, BuildTensor, FreshBank

_EXPERT = ".mlp.experts."


class AbsentPanels(PanelLinear):
    """Placeholder for a product without weights: its struct has no outputs, and it cannot be called."""

    def __init__(self) -> None:
        self.packed = memoryview(b"")
        self.bias = None
        self.linear = NativeLinear()
        self.out_features = self.in_features = 0

    def __call__(self, x: Tensor) -> Tensor:
        raise AssertionError("an expert without weights was to compute")


class WithoutExperts:
    """Weight bank of a model without its routed experts, which are neither built nor read.

    Args:
        bank: builds everything else.
    """

    def __init__(self, bank: FreshBank) -> None:
        self._bank = bank

    @property
    def coarse_drafts(self) -> bool:
        """The other bank's setting."""
        return self._bank.coarse_drafts

    @property
    def w8a16_inputs(self) -> int:
        """The other bank's limit."""
        return self._bank.w8a16_inputs

    def tensor(self, name: str, build: BuildTensor) -> Tensor:
        """Returns the other bank's tensor."""
        return self._bank.tensor(name, build)

    def linear(self, name: str, build: BuildLinear) -> Linear:
        """The other bank's product, or a placeholder for a routed expert."""
        return AbsentPanels() if _EXPERT in name else self._bank.linear(name, build)

    def heads(self, name: str, build: BuildLinear) -> HeadLinear:
        """Returns the other bank's heads."""
        return self._bank.heads(name, build)
