"""Sources of a model's experts: the loaded model itself, or the checkpoint.

Expert layers are numbered over all blocks with routed experts, the draft layer's last.
"""

from collections.abc import Callable, Sequence
from math import prod
from pathlib import Path

import torch

from hardware.ub.pages import let_go
from serving.errors import ConfigError, ModelError
from serving.model.architecture import Architecture
from serving.model.assembly import Assembly
from serving.model.checkpoint import Checkpoint, CheckpointShapes
from serving.model.experts import ExpertLayer, LocalExperts
from serving.model.forms import ProductForms
from serving.model.image import PLAIN
from serving.model.image_bank import PlanningBank
from serving.model.layers import Mlp
from serving.model.linear import Linear
from serving.model.loader import open_checkpoint
from serving.model.model import Model
from serving.model.native.panels import AbsentPanels, PanelLinear
from serving.model.slots.expert_record import PackedExpert, PackedProduct, record_bytes
from serving.model.slots.expert_slots import ExpertSource, RoutedExperts
from serving.model.slots.stored_experts import names_of_layers
from serving.model.weight_bank import FreshBank


class LoadedExperts:
    """Experts of a loaded model, on an image or in this process's memory.

    Raises: ModelError if the model has no routed experts, or ones that are not panels.
    """

    in_place = True

    def __init__(self, model: Model) -> None:
        self._layers = [_panels(layer) for layer in expert_layers(model).values()]
        if not self._layers:
            raise ModelError("this model has no routed experts: ep must be 1")

    @property
    def layers(self) -> int:
        """Layers with routed experts."""
        return len(self._layers)

    def room(self, layer: int) -> int:
        """Exact, since the forms are known."""
        return max(packed_expert(*products).record_bytes for products in self._layers[layer])

    def expert(self, layer: int, expert: int) -> PackedExpert:
        """The expert on the model's memory, without a copy."""
        return packed_expert(*self._layers[layer][expert])

    def forget(self) -> None:
        """Unmap the pages of an image's experts from this process; its own memory is kept."""
        let_go(part for layer in self._layers for products in layer for part in packed_expert(*products).parts if part)


class CheckpointExperts:
    """Experts read from the checkpoint, packed on each access.

    Args:
        numbers: of the model's layers with routed experts, a draft layer's last.
        dtype: the model's.
        forms: creates the product forms; they keep the memory that they pack.
    """

    in_place = False

    def __init__(
        self,
        folder: Path,
        config: Architecture,
        numbers: Sequence[int],
        dtype: torch.dtype,
        forms: Callable[[], ProductForms],
    ) -> None:
        self._config, self._folder, self._numbers = config, folder, tuple(numbers)
        self._dtype, self._forms = dtype, forms
        self._opened: Checkpoint | None = None

    @property
    def layers(self) -> int:
        """Layers with routed experts."""
        return len(self._numbers)

    def room(self, layer: int) -> int:
        """Determined from shapes; if the form depends on the values, the size of the larger one.

        Raises: ModelError if the checkpoint cannot be read.
        """
        bank = PlanningBank(self._forms())
        source, meta = CheckpointShapes(self._checkpoint()), torch.device("meta")
        Assembly(self._config, source, bank, self._dtype, meta).expert(self._numbers[layer], 0)
        entries = bank.manifest("", self._dtype, range(0), frozenset()).entries
        return record_bytes(*(prod(one.shape) * 4 if one.layout == PLAIN else one.nbytes for one in entries))

    def expert(self, layer: int, expert: int) -> PackedExpert:
        """Read and pack an expert, into separate memory.

        Raises: ModelError if the checkpoint cannot be read.
        Effects: keeps the checkpoint's files mapped until `forget`.
        """
        return self._net(lambda assembly: assembly.expert(self._numbers[layer], expert))

    def shared(self, layer: int) -> PackedExpert:
        """Read and pack the shared experts of a layer, as `expert`."""
        return self._net(lambda assembly: assembly.shared(self._numbers[layer]))

    def _net(self, read: Callable[[Assembly], Mlp]) -> PackedExpert:
        bank, cpu = FreshBank(self._forms()), torch.device("cpu")
        assembly = Assembly(self._config, self._checkpoint(), bank, self._dtype, cpu)
        with torch.inference_mode():
            net = read(assembly)
        return packed_expert(net.gate_up, net.down)

    def forget(self) -> None:
        """Close the checkpoint; the next expert opens it again."""
        self._opened = None

    def _checkpoint(self) -> Checkpoint:
        opened = self._opened  # another thread may close it at any time
        if opened is None:
            opened, _ = open_checkpoint(self._config, self._folder, None)
            self._opened = opened
        return opened


def expert_source(model: Model, folder: Path, forms: Callable[[], ProductForms]) -> ExpertSource:
    """A model's own experts, or those of its checkpoint if it was loaded without them.

    Args:
        folder: the checkpoint's.
        forms: creates the forms with which the model was loaded.
    Raises: ModelError if the model has no routed experts, or ones that are not panels.
    """
    layers = expert_layers(model)
    absent = any(
        isinstance(product, AbsentPanels) for layer in layers.values() for pair in _panels(layer) for product in pair
    )
    if absent:
        return CheckpointExperts(folder, model.config, list(layers), model.dtype, forms)
    return LoadedExperts(model)


def routed_experts(model: Model, folder: Path, forms: Callable[[], ProductForms]) -> RoutedExperts:
    """A model's routed experts; arguments as for `expert_source`.

    Raises: ConfigError if it has none; ModelError if they are not panels.
    """
    shape = model.config.experts
    if shape is None:
        raise ConfigError(f"a model of {model.config.model_type} has no routed experts to share: set ep to 1")
    names = names_of_layers(model.config, list(expert_layers(model)))
    return RoutedExperts(expert_source(model, folder, forms), shape.experts, shape.rule, names)


def expert_layers(model: Model) -> dict[int, ExpertLayer]:
    """Layers with routed experts by their number in the model, in order; of draft layers only the first."""
    blocks = [*model.blocks, *(layer.block for layer in model.mtp[:1])]
    return {number: block.feed for number, block in enumerate(blocks) if isinstance(block.feed, ExpertLayer)}


def packed_expert(gate_up: Linear, down: Linear) -> PackedExpert:
    """An expert on its products' memory.

    Raises: ModelError if they are not panels.
    """
    return PackedExpert(_packed(gate_up), _packed(down))


def _packed(product: Linear) -> PackedProduct:
    if not isinstance(product, PanelLinear) or isinstance(product, AbsentPanels):
        raise ModelError(f"an expert's product is a {type(product).__name__}: slots hold panels of the native library")
    bias = memoryview(b"") if product.bias is None else product.bias.numpy().data.cast("B")
    sizes = product.out_features, product.in_features, product.groups, int(product.form)
    return PackedProduct(*sizes, product.packed, bias)


def _panels(layer: ExpertLayer) -> list[tuple[Linear, Linear]]:
    if not isinstance(layer.experts, LocalExperts):
        raise ModelError("these experts are one grouped product: slots hold panels of the native library")
    return list(zip(layer.experts.gate_up, layer.experts.down, strict=True))
