"""Products as the native library's panels: packed once, read by the native step in place, callable from the torch path.

Panels depend only on the library's layout, not on threads, the kind of CPU or torch's build, so one image of a model
serves every process of a node.
"""

import mmap

import torch
from torch import Tensor

from serving.errors import ModelError
from serving.model.forms import PackedShape, StoredProduct
from serving.model.image import ALIGNMENT, address_of
from serving.model.linear import HeadLinear, Linear, LinearWeight
from serving.model.native.layout import SHORT_INPUTS, W8A16_INPUTS, Form, NativeLinear
from serving.model.native.library import Library
from serving.model.native.panel_layout import (
    EITHER_LAYOUT,
    HEAD_BYTES,
    LAYOUT,
    W8A16_LAYOUT,
    nbytes_of,
    open_panels,
    panel_fingerprint,
    product_sizes,
)
from serving.model.weight_bank import BuildLinear, BuildTensor, FreshBank

_FORMS = {torch.float32: Form.F32, torch.bfloat16: Form.BF16, torch.int8: Form.INT8}
_ARENA_BYTES = 64 << 20
_HUGE_PAGE = 2 << 20


class PanelProduct:
    """Panels of one group or several.

    Args:
        packed: the library's packed bytes; kept alive.
        linear: the library's struct, whose addresses are filled in here; valid while this object exists.
        bias: `[groups * out_features]`, floating point.
    """

    __slots__ = ("_library", "bias", "form", "groups", "in_features", "linear", "out_features", "packed")

    def __init__(self, library: Library, packed: memoryview, linear: NativeLinear, bias: Tensor | None) -> None:
        self._library = library
        self.packed = packed
        self.bias = None if bias is None else bias.float().contiguous()
        self.linear = linear
        linear.packed = address_of(packed)
        linear.bias = None if self.bias is None else self.bias.data_ptr()
        self.out_features: int = linear.out_features
        self.in_features: int = linear.in_features
        self.groups: int = linear.groups
        self.form = Form(linear.form)

    def _apply(self, x: Tensor, shape: tuple[int, ...]) -> Tensor:
        """Rows of x times the panels; x and the result are float32 or bfloat16.

        Raises: ModelError if there is no memory.
        """
        assert x.numel() == x.shape[0] * self.groups * self.in_features, f"rows of {list(x.shape)}"
        x = x.contiguous()
        y = x.new_empty(shape)
        self._library.apply(
            self.linear, x.data_ptr(), x.shape[0], _FORMS[x.dtype], y.data_ptr(), torch.get_num_threads()
        )
        return y


class PanelLinear(PanelProduct):
    """A `NativeLinear` as panels."""

    def __call__(self, x: Tensor) -> Tensor:
        """`[rows, in_features] -> [rows, out_features]`. A row's bits do not depend on the other rows."""
        return self._apply(x, (x.shape[0], self.out_features))


class PanelHeads(PanelProduct):
    """A `HeadLinear` as panels: a group per head."""

    def __call__(self, x: Tensor) -> Tensor:
        """`[rows, heads, in_features] -> [rows, heads, out_features]`, with results as `PanelLinear`'s."""
        return self._apply(x, (x.shape[0], self.groups, self.out_features))


class PanelForms:
    """Panels for every product on the CPU.

    Args:
        library: packs and computes.
        coarse_drafts: products of draft layers in INT8, see `weight_bank.py`.
        short: bfloat16 weights in twelve bits per number if their exponents permit, see short_bf16.h. Same results.
    """

    w8a16_inputs = W8A16_INPUTS

    def __init__(self, library: Library, *, coarse_drafts: bool = False, short: bool = False) -> None:
        self.coarse_drafts = coarse_drafts
        self._short = short
        self._library = library
        self._arena = _Arena()

    def fingerprint(self) -> str:
        """The layout's name, whether drafts are coarse, and whether weights may be short."""
        return panel_fingerprint(coarse_drafts=self.coarse_drafts, short=self._short)

    def linear(self, given: LinearWeight) -> PanelLinear | PanelHeads:
        """Pack into memory of this process."""
        for form in self._forms_to_try(given):
            linear = product_sizes(given.weight.shape, form)
            memory = self._arena.take(self._nbytes(linear))
            if self._pack(given, linear, memory):
                return self._product(memory, linear, given.weight.dim(), given.bias)
            self._arena.give_back(memory)
        raise AssertionError("the last form always can be")

    def heads(self, given: LinearWeight) -> PanelLinear | PanelHeads:
        """Pack into memory of this process."""
        return self.linear(given)

    def packed_shape(self, given: LinearWeight) -> PackedShape:
        """The shape, from the weight's shape alone; if the form depends on the values, the larger size."""
        *shorter, form = self._forms_to_try(given)
        nbytes = self._nbytes(product_sizes(given.weight.shape, form))
        if shorter:
            return PackedShape(EITHER_LAYOUT, HEAD_BYTES + nbytes)
        return PackedShape(W8A16_LAYOUT if form == Form.W8A16 else LAYOUT, nbytes)

    def write(self, given: LinearWeight, shape: PackedShape, memory: memoryview) -> None:
        """Pack in place.

        Raises: ModelError if the memory has another size.
        """
        if memory.nbytes != self.packed_shape(given).nbytes:
            raise ModelError(f"panels of {list(given.weight.shape)} do not take {memory.nbytes} bytes")
        head = HEAD_BYTES if shape.layout == EITHER_LAYOUT else 0
        for form in self._forms_to_try(given):
            if self._pack(given, product_sizes(given.weight.shape, form), memory[head:]):
                memory[:head] = bytes([form]).ljust(head, b"\0") if head else b""
                return

    def over(self, stored: StoredProduct) -> PanelLinear | PanelHeads:
        """A product over stored bytes, which the library reads in place.

        Raises: ModelError if they are not panels of this layout.
        """
        dtype = str(stored.dtype).removeprefix("torch.")
        linear, panels = open_panels(self._library, stored.memory, stored.layout, dtype, stored.shape)
        return self._product(panels, linear, len(stored.shape), stored.bias)

    def _forms_to_try(self, given: LinearWeight) -> list[Form]:
        """Forms to try in order; the last one is always possible.

        Raises: ModelError if there are no panels of the weight's dtype.
        """
        weight = given.weight
        if weight.dtype not in _FORMS:
            raise ModelError(f"there are no panels of {weight.dtype}")
        if given.weight_only:
            return [Form.W8A16]
        short = self._short and weight.dtype == torch.bfloat16 and not given.many_rows
        inputs = weight.shape[1]
        return [Form.BF16_SHORT] * (short and inputs <= SHORT_INPUTS) + [_FORMS[weight.dtype]]

    def _pack(self, given: LinearWeight, linear: NativeLinear, memory: memoryview) -> bool:
        """Returns: False if the weight cannot have this form."""
        heads = given.weight.dim() == 3
        weight = (given.weight.transpose(1, 2) if heads else given.weight).contiguous()
        scale = None if given.scale is None else _scales(given.scale.float(), linear).contiguous()
        scale_address = None if scale is None else scale.data_ptr()
        return self._library.pack(weight.data_ptr(), scale_address, linear, address_of(memory))

    def _product(
        self, memory: memoryview, linear: NativeLinear, axes: int, bias: Tensor | None
    ) -> PanelLinear | PanelHeads:
        kind = PanelHeads if axes == 3 else PanelLinear
        return kind(self._library, memory, linear, bias)

    def _nbytes(self, linear: NativeLinear) -> int:
        return nbytes_of(self._library, linear)


class _Arena:
    """Memory for panels in large pages: a step reads all of them, and large pages reduce TLB misses.

    Freed with the last product in it.
    """

    def __init__(self) -> None:
        self._whole = memoryview(b"")
        self._end = 0

    def take(self, nbytes: int) -> memoryview:
        """Memory that is zeroed, or was given back before, at a multiple of 64."""
        size = _aligned(nbytes)
        if self._end + size > self._whole.nbytes:
            whole = mmap.mmap(-1, max(_ARENA_BYTES, -(-size // _HUGE_PAGE) * _HUGE_PAGE), flags=mmap.MAP_PRIVATE)
            whole.madvise(mmap.MADV_HUGEPAGE)
            self._whole, self._end = memoryview(whole), 0
        self._end += size
        return self._whole[self._end - size :][:nbytes]

    def give_back(self, last: memoryview) -> None:
        """Give back the latest memory, unused."""
        self._end -= _aligned(last.nbytes)


def _aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def _scales(scale: Tensor, linear: NativeLinear) -> Tensor:
    """Scales in the library's form: of outputs; for W8A16 also of inputs, one of the two being 1."""
    if linear.form != Form.W8A16:
        return scale
    outputs = scale.new_ones(linear.groups, linear.out_features)
    inputs = scale.new_ones(linear.groups, linear.in_features)
    if scale.dim() == 1 or scale.shape[1] == 1:
        outputs *= scale.view(linear.groups, linear.out_features)
    else:
        inputs *= scale[:, :, 0]
    return torch.cat((outputs.flatten(), inputs.flatten()))


# Routed experts that are not in this process's model: their weights are in slots, or on other ranks.

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
