"""Quantise one layer: fold outliers into the operators before, then round each product (weight matrix) to INT8.

Both steps use the inputs of each product that were recorded when the model computed the calibration text.

All functions are pure functions of tensors: names identify the tensors, `structure` defines their relations.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from serving.model.architecture import ClampedGate
from serving.model.checkpoint import Int8Weight
from serving.model.layers import swiglu
from serving.tools.quantize.folding import Folded, clipped_range, fold_layer, spread
from serving.tools.quantize.quantize_settings import RecipeSteps
from serving.tools.quantize.rounding import channel_range, compensated_best, dequantised, round_weight, rounded_tokens
from serving.tools.quantize.structure import Product, Structure
from serving.tools.quantize.tensors_in_memory import Inputs, product_weight, rows_of

ERROR_ROWS = 2048
"""Held-out rows that a product's error is measured on, at most."""


@dataclass(frozen=True, slots=True)
class ProductError:
    """How far a quantised product is from the original on held-out rows.

    Args:
        lost, signal: squared sums of the difference and of the original's output.
    """

    product: Product
    lost: float
    signal: float


def quantise_layer(
    tensors: Mapping[str, Tensor], structure: Structure, kept: frozenset[str], inputs: Inputs, steps: RecipeSteps
) -> Folded:
    """Quantise a layer's products.

    Args:
        tensors: the layer's, float32.
        kept: operator classes that stay in floating point.
        inputs: calibration rows.
    """
    wanted = [product for product in structure.products if product.operator not in kept]
    result = fold_layer(tensors, structure, wanted, inputs, search=steps.search) if steps.fold else Folded({**tensors})
    for product in wanted:
        rows = rows_of(product, inputs, tensors) / result.inputs.get(product.recorded, torch.ones(()))
        weight = product_weight(result.tensors, product)
        heights = [tensors[name + ".weight"].shape[0] for name in product.matrices]
        for name, part in zip(product.matrices, _split(rounded(weight, rows, steps), heights), strict=True):
            result.tensors[name + ".weight"] = part
    return result


def rounded(weight: Tensor, rows: Tensor, steps: RecipeSteps) -> Int8Weight:
    """One product's weight in INT8, by the enabled steps."""
    whole = channel_range(weight)
    limit = clipped_range(weight, rows) if steps.clip else whole
    return compensated_best(weight, whole, limit, rows) if steps.compensate else round_weight(weight, limit)


def product_error(product: Product, before: Mapping[str, Tensor], after: Folded, rows: Tensor) -> ProductError:
    """Compare a product with its original, in the original's units.

    Args:
        before: the layer's tensors. after: quantised.
        rows: held-out inputs of the original.
    """
    tried = spread(rows, ERROR_ROWS)
    exact = tried @ product_weight(before, product).T
    weight = torch.cat([_unfolded(after, name + ".weight") for name in product.matrices])
    given = tried / after.inputs.get(product.recorded, torch.ones(()))
    lost = (given if product.weight_only else rounded_tokens(given)) @ weight.T - exact
    return ProductError(product, float(lost.square().sum()), float(exact.square().sum()))


def _unfolded(layer: Folded, name: str) -> Tensor:
    found = layer.tensors[name]
    weight = dequantised(found) if isinstance(found, Int8Weight) else found
    return weight * layer.outputs[name].unsqueeze(1) if name in layer.outputs else weight


def fill_experts(
    tensors: Mapping[str, Tensor],
    structure: Structure,
    inputs: Inputs,
    gate: str,
    clamped: ClampedGate | None = None,
) -> dict[int, int]:
    """Give experts that saw fewer rows than they have input channels rows of the layer's other tokens.

    A Hessian of fewer rows than columns does not determine most directions; the layer's other tokens are a better
    estimate than none. An expert's own rows stay among them.

    Args:
        inputs: calibration rows.
        gate: the router's recorded name: its input is that of all experts, every token once.
        clamped: how the experts' gates open.
    Returns: rows that each expert saw itself.
    Effects: extends `inputs`.
    """
    seen: dict[int, int] = {}
    for into, down in _expert_pairs(structure):
        assert into.expert is not None
        own = rows_of(into, inputs, tensors)
        seen[into.expert] = own.shape[0]
        enough = max(own.shape[1], tensors[down.matrices[0] + ".weight"].shape[1])
        if own.shape[0] >= enough:
            continue
        pooled = spread(inputs[gate], enough - own.shape[0])
        inputs[into.recorded] = torch.cat((own, pooled))
        biases = [tensors[f"{name}.bias"] for name in into.matrices if f"{name}.bias" in tensors]
        outer = pooled @ product_weight(tensors, into).T
        inner = swiglu(outer + torch.cat(biases) if biases else outer, clamped)
        inputs[down.recorded] = torch.cat((rows_of(down, inputs, tensors), inner))
    return seen


def _expert_pairs(structure: Structure) -> list[tuple[Product, Product]]:
    products = [product for product in structure.products if product.expert is not None]
    return list(zip(products[::2], products[1::2], strict=True))


def _split(whole: Int8Weight, heights: Sequence[int]) -> list[Int8Weight]:
    weights, scales = whole.weight.split(list(heights)), whole.scale.split(list(heights))
    return [Int8Weight(weight.contiguous(), scale.contiguous()) for weight, scale in zip(weights, scales, strict=True)]
