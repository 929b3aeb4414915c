"""Outlier suppression: scales per channel, moved from a product's input into its weight, inside neighbouring operators.

Floating-point parts must not be rounded again, or the fold would cost as much as it saves:

- a norm's weight keeps its bfloat16: the scale is derived from the rounded quotient, `g / bf16(g / s)`;
- a matrix that is INT8 itself (up before down, kv_b_proj or v_proj before o_proj) is rounded once, after the fold: any
  scale, or with a bias one that keeps the bias in bfloat16;
- if `--keep` preserves that matrix as stored: powers of two;
- the router, which reads the channels too, is stored in float32;
- if another product after the fold stays in floating point: powers of two.

So the folded model is the original one up to the last bit of float32 sums. Compared with powers of two everywhere,
scales near the optimal ones lower the error of a fold's products by a tenth on the demo model.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from serving.tools.quantize.smoothing import Consumer, powers_of_two, search_scale
from serving.tools.quantize.structure import Fold, Producer, Product, Structure
from serving.tools.quantize.table import Inputs, Tensors, product_weight, rows_of


@dataclass(slots=True)
class Folded:
    """A layer during folding.

    Args:
        tensors: all of the layer's.
        inputs: divisors of a product's inputs, `[in_features]`, by its recorded name.
        outputs: divisors of a matrix' outputs, `[out_features]`, by its tensor's name.
    """

    tensors: Tensors
    inputs: dict[str, Tensor] = field(default_factory=dict)
    outputs: dict[str, Tensor] = field(default_factory=dict)


def fold_layer(
    tensors: Mapping[str, Tensor], structure: Structure, wanted: Sequence[Product], inputs: Inputs, *, search: bool
) -> Folded:
    """Fold scales into the operators before the products that are to be quantised; without quantising yet."""
    folded = dict(tensors)
    result = Folded({})
    for fold in structure.folds:
        scale = fold_scale(folded, fold, wanted, inputs, search=search)
        if scale is not None:
            apply_fold(folded, fold, scale)
            result.inputs |= {product.recorded: _columns(fold, scale) for product in fold.products}
            matrices = (p for p in fold.producers if folded[p.tensor].dim() == 2)
            result.outputs |= {p.tensor: _per_row(p, folded[p.tensor].shape[0], scale) for p in matrices}
    result.tensors = dict(folded)
    return result


def _columns(fold: Fold, scale: Tensor) -> Tensor:
    """Factors of the products' columns, `[in_features]`."""
    return scale if fold.reads is None else scale[list(fold.reads)]


def _per_row(producer: Producer, rows: int, scale: Tensor) -> Tensor:
    """Divisors of a matrix' rows, `[rows]`."""
    if producer.rows is None:
        return scale
    found = torch.ones(rows)
    found[list(producer.rows)] = scale
    return found


def fold_scale(
    tensors: Mapping[str, Tensor], fold: Fold, wanted: Sequence[Product], inputs: Inputs, *, search: bool
) -> Tensor | None:
    """The scale of one place, chosen on the products that are to be quantised; None where there are none."""
    chosen = [product for product in fold.products if product in wanted]
    if not chosen:
        return None
    reads = None if fold.reads is None else torch.tensor(fold.reads)
    consumers = [Consumer(product_weight(tensors, p), rows_of(p, inputs, tensors), reads) for p in chosen]
    mixed = len(chosen) < len(fold.products)
    realise = powers_of_two if mixed else partial(_realised, tensors, fold, wanted)
    return search_scale(consumers, realise, search=search)


def _realised(tensors: Mapping[str, Tensor], fold: Fold, wanted: Sequence[Product], scale: Tensor) -> Tensor:
    """The scale nearest to the requested one that causes no rounding of floating-point operators."""
    quantised = {name + ".weight" for product in wanted for name in product.matrices}
    parts = []
    for producer in fold.producers:
        tensor = tensors[producer.tensor]
        count = len(producer.rows) if producer.rows else tensor.shape[0]
        part = scale[producer.first_channel : producer.first_channel + count]
        if tensor.dim() == 1:
            part = _exact_quotient(tensor, part, torch.ones_like(part))
        elif producer.tensor not in quantised:
            part = powers_of_two(part)
        elif producer.bias is not None:
            part = _exact_quotient(tensors[producer.bias], part, part)
        parts.append(part)
    return torch.cat(parts)


def _exact_quotient(vector: Tensor, scale: Tensor, without: Tensor) -> Tensor:
    """The scale by which the vector can be divided into bfloat16 numbers.

    Args:
        without: for elements whose quotient is zero.
    """
    quotient = (vector / scale).bfloat16().float()
    return torch.where(quotient != 0, vector / quotient, without)


def apply_fold(tensors: dict[str, Tensor], fold: Fold, scale: Tensor) -> None:
    """Divide the tensors that produce the channels and multiply those that read them.

    Args:
        scale: `[channels]`.
    Effects: replaces tensors.
    """
    for producer in fold.producers:
        for name in filter(None, (producer.tensor, producer.bias)):
            tensors[name] = _divided(tensors[name], producer, scale)
    columns = _columns(fold, scale)
    matrices = [name + ".weight" for product in fold.products for name in product.matrices]
    for name in (*matrices, *fold.exact):
        tensors[name] = tensors[name] * columns


def _divided(given: Tensor, producer: Producer, scale: Tensor) -> Tensor:
    """A matrix or vector whose rows are divided by the scales of the channels that they give."""
    tensor = given.clone()
    rows = torch.arange(tensor.shape[0]) if producer.rows is None else torch.tensor(producer.rows)
    part = scale[producer.first_channel : producer.first_channel + rows.shape[0]]
    tensor[rows] = tensor[rows] / (part if tensor.dim() == 1 else part.unsqueeze(1))
    return tensor
