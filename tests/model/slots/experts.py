"""Experts with random bytes, and models whose experts are panels."""

import random
from pathlib import Path

from hypothesis import strategies as st

from serving.model.image import ImageStore
from serving.model.loader import load_model
from serving.model.model import Model
from serving.model.native.layout import Form
from serving.model.slots.expert_record import PackedExpert, PackedProduct

FORMS = tuple(Form)


@st.composite
def packed_experts(draw: st.DrawFn) -> PackedExpert:
    """Experts of any form and size, with and without biases."""
    return PackedExpert(draw(_products()), draw(_products()))


@st.composite
def _products(draw: st.DrawFn) -> PackedProduct:
    dice = random.Random(draw(st.integers(0, 1 << 32)))
    outputs = draw(st.integers(1, 40))
    packed = memoryview(dice.randbytes(draw(st.integers(1, 3000))))
    bias = memoryview(dice.randbytes(4 * outputs if draw(st.booleans()) else 0))
    return PackedProduct(outputs, draw(st.integers(1, 90)), 1, draw(st.sampled_from(FORMS)), packed, bias)


def an_expert() -> PackedExpert:
    """One with a bias."""
    gate_up = PackedProduct(4, 3, 1, Form.INT8, memoryview(bytes(range(200))), memoryview(bytes(16)))
    return PackedExpert(gate_up, PackedProduct(3, 2, 1, Form.INT8, memoryview(bytes(range(100)))))


def contents(expert: PackedExpert) -> list[object]:
    """All contents of an expert, by value."""
    products = (expert.gate_up, expert.down)
    return [
        (one.out_features, one.in_features, one.groups, one.form, bytes(one.packed), bytes(one.bias))
        for one in products
    ]


def panel_model(folder: Path, images: ImageStore | None = None, **how: object) -> Model:
    """A model with panels of the native library, on an image if there is a shelf."""
    return load_model(folder, native=True, images=images, version="1", **how)  # type: ignore[arg-type] # by keyword


class MadeExperts:
    """A source of experts with distinct random bytes.

    Args:
        layers: with routed experts.
    """

    in_place = False
    NBYTES = 3000
    """Of each product."""

    def __init__(self, layers: int) -> None:
        self.layers = layers
        self.asked: list[tuple[int, int]] = []

    def room(self, layer: int) -> int:
        """Size, equal for all experts."""
        return self._made(layer, 0).record_bytes

    def expert(self, layer: int, expert: int) -> PackedExpert:
        """Create an expert."""
        self.asked.append((layer, expert))
        return self._made(layer, expert)

    def forget(self) -> None:
        """Do nothing: there is no cache."""

    def _made(self, layer: int, expert: int) -> PackedExpert:
        dice = random.Random(layer << 16 | expert)
        packed = (memoryview(dice.randbytes(self.NBYTES)) for _ in range(2))
        return PackedExpert(*(PackedProduct(4, 3, 1, Form.INT8, one) for one in packed))
