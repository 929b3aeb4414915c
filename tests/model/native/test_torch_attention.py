"""Attention of the native step against `LatentAttention`, on the same cache."""

import ctypes
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from serving.ids import BlockId, SequenceId
from serving.instance.executors.step_batch import build_batch, step_feeds
from serving.model.architecture import Architecture
from serving.model.kv_cache import KvCache
from serving.model.kv_shape import KvDtype
from serving.model.latent_attention import LatentAttention, LatentWeights
from serving.model.layers import RmsNorm
from serving.model.linear import PlainHeads, PlainLinear
from serving.model.rope import Rope, rotate
from serving.values.step_plan import SequenceStep, StepPlan
from tests.model.latent import latent_shape
from tests.model.native.kernels import Case, Span

BLOCKS, BLOCK_TOKENS, LAYER = 80, 4, 1

# Of the largest number. Torch rounds scores, weights and means to bfloat16; the native step keeps scores in float32.
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 3e-2}


class Unchanged:
    """A product with the identity, so that a layer uses queries and latents unchanged, and returns its heads."""

    def __init__(self, features: int) -> None:
        self.in_features = self.out_features = features

    def __call__(self, x: Tensor) -> Tensor:
        return x


def torch_layer(config: Architecture, case: Case) -> LatentAttention:
    expand = case.expand.to(case.dtype)
    key, value = expand.split((case.nope, case.value), 1)
    width = case.heads * (case.nope + case.rope) + case.kv_lora + case.rope
    weights = LatentWeights(
        into=Unchanged(width),
        query_norm=None,
        query_up=None,
        latent_norm=RmsNorm(torch.ones(case.kv_lora, dtype=case.dtype), 1e-6),
        expand=PlainLinear(expand.flatten(0, 1)),
        key_absorb=PlainHeads(key.contiguous()),
        value_absorb=PlainHeads(value.transpose(1, 2).contiguous()),
        out=Unchanged(case.heads * case.value),
    )
    return LatentAttention(replace(latent_shape(config), query_latent=None), weights, LAYER)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("kv_dtype", ["auto", "int8"])
def test_both_paths_give_the_same_heads(
    kernels: ctypes.CDLL, tiny_config: Architecture, dtype: torch.dtype, kv_dtype: KvDtype
) -> None:
    shape = latent_shape(tiny_config)
    case = Case(
        heads=shape.heads, kv_lora=shape.latent, nope=shape.nope_dim,
        rope=shape.rope_dim, value=shape.value_dim, dtype=dtype, block_tokens=BLOCK_TOKENS,
        blocks=BLOCKS, layers=len(tiny_config.layers), int8_cache=kv_dtype == "int8",
    )  # fmt: skip
    case = replace(case, factor=shape.scale)
    cache = KvCache(tiny_config, BLOCKS, BLOCK_TOKENS, dtype, kv_dtype=kv_dtype)
    layer, rope = torch_layer(tiny_config, case), Rope(tiny_config, torch.device("cpu"))
    generator = torch.Generator().manual_seed(3)
    order = torch.randperm(BLOCKS, generator=generator).tolist()
    tables = {"a": order[:40], "b": order[40:60], "c": order[60:]}
    fed = dict.fromkeys(tables, 0)
    for pieces in ({"a": 150, "b": 7}, {"a": 1, "b": 4, "c": 33}, {"a": 5, "b": 1, "c": 1}, {"a": 2, "b": 60, "c": 1}):
        steps = tuple(
            SequenceStep(
                SequenceId(name), [1] * rows, fed[name], tuple(map(BlockId, tables[name])), None, alone=rows <= 4
            )
            for name, rows in pieces.items()
        )
        batch = build_batch(step_feeds(StepPlan(0, steps)), cache, case.heads)
        positions = batch.forward.positions
        rotations = rope.rotations(positions)
        x = torch.randn(len(positions), layer.w.into.in_features, generator=generator).to(dtype)
        wanted = layer(x.clone(), rotations, batch.forward, cache).view(-1, case.heads, case.value)
        query = x[:, : layer.split[0]].view(len(positions), case.heads, -1).clone()
        query[..., case.nope :] = rotate(query[..., case.nope :], rotations[:, None]).to(dtype)
        rows = [row for listed in batch.rows for row in listed]
        spans = [Span(count, fed[name], tables[name], count > 4) for name, count in pieces.items()]
        arena = cache.tensor.view(torch.uint8).flatten().numpy()
        got = case.attend(kernels, query[rows], spans, arena, layer=LAYER)
        assert float((got.float() - wanted[rows].float()).abs().max() / wanted.abs().max()) < TOLERANCE[dtype]
        for name, count in pieces.items():
            fed[name] += count
