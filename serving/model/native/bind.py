"""A model in the native library's form: one struct of addresses that keeps all referenced objects alive."""

from collections.abc import Iterable

import torch
from torch import Tensor

from serving.errors import ModelError
from serving.model.experts import ExpertLayer, LocalExperts
from serving.model.grouped_attention import GroupedAttention
from serving.model.kv_cache import KvCache
from serving.model.latent_attention import LatentAttention
from serving.model.layers import Mlp, RmsNorm
from serving.model.linear import HeadLinear, Linear
from serving.model.model import Block, Model, MtpLayer
from serving.model.native import layout
from serving.model.native.image_model import ExpertShapes, model_sizes
from serving.model.native.panels import PanelHeads, PanelLinear

_FORMS = {torch.float32: layout.Form.F32, torch.bfloat16: layout.Form.BF16}


class BoundModel:
    """A loaded model, bound to the library's structs.

    The addresses are valid while this object exists.

    Args:
        model: on the CPU, with panels as products (`load_model(..., native=True)`).
        expert_shapes: for each layer with routed experts, placeholder products for absent experts (`AbsentPanels`): the
            same sizes and form; never computed with.
    Raises: ModelError if a part has another form.
    """

    def __init__(self, model: Model, expert_shapes: ExpertShapes = ()) -> None:
        if model.dtype not in _FORMS or model.device.type != "cpu":
            raise ModelError(f"a model of {model.dtype} on {model.device} has no native step")
        self._kept: list[object] = [expert_shapes]
        self._expert_shapes = iter(expert_shapes)
        self.struct = layout.NativeModel(
            **model_sizes(model.config),
            form=_FORMS[model.dtype],
            norm_eps=model.norm.eps,
            rope_frequencies=self._floats(torch.tensor(model.config.rope.inverse_frequencies(model.config.rope_dim))),
            embed=self._address(model.embed),
            blocks=layout.array_of(layout.NativeBlock, [self._block(block) for block in model.blocks], self._kept),
            norm=self._norm(model.norm),
            head=self._linear(model.head),
            draft=layout.array_of(layout.NativeDraftLayer, [self._draft(layer) for layer in model.mtp[:1]], self._kept),
        )

    def _block(self, block: Block) -> layout.NativeBlock:
        bound = layout.NativeBlock(
            attention_norm=self._norm(block.attention_norm),
            into=self._linear(block.attention.w.into),
            query_norm=self._norm(block.attention.w.query_norm),
            out=self._linear(block.attention.w.out),
            feed_norm=self._norm(block.feed_norm),
        )
        if isinstance(block.attention, GroupedAttention):
            bound.kind, bound.rotates = layout.AttentionKind.GROUPED, block.attention.rotates
            bound.key_norm = self._norm(block.attention.w.key_norm)
            bound.window = block.attention.shape.window or 0
            bound.sinks = None if block.attention.w.sinks is None else self._floats(block.attention.w.sinks)
        else:
            self._bind_latents(bound, block.attention)
        net = block.feed
        if isinstance(net, ExpertLayer):
            self._bind_experts(bound, net)
            if net.shared is None:
                return bound
            net = net.shared
        assert isinstance(net, Mlp), "a feed-forward net of an unknown kind"
        bound.gate_up, bound.down = self._linear(net.gate_up), self._linear(net.down)
        return bound

    def _bind_latents(self, bound: layout.NativeBlock, attention: LatentAttention) -> None:
        w = attention.w
        bound.query_up, bound.latent_norm = self._linear(w.query_up), self._norm(w.latent_norm)
        bound.expand = self._linear(w.expand)
        bound.key_absorb, bound.value_absorb = self._linear(w.key_absorb), self._linear(w.value_absorb)

    def _bind_experts(self, bound: layout.NativeBlock, layer: ExpertLayer) -> None:
        assert isinstance(layer.experts, LocalExperts), "experts of another rank"
        bound.gate = self._linear(layer.gate.score)
        bound.gate_bias = None if layer.gate.bias is None else self._floats(layer.gate.bias)
        gate_up, down = self._linears(layer.experts.gate_up), self._linears(layer.experts.down)
        shapes = next(self._expert_shapes, None)
        if shapes is not None:
            gate_up = [one if one.out_features else shapes[0] for one in gate_up]
            down = [one if one.out_features else shapes[1] for one in down]
        bound.expert_gate_up = layout.array_of(layout.NativeLinear, gate_up, self._kept)
        bound.expert_down = layout.array_of(layout.NativeLinear, down, self._kept)

    def _draft(self, layer: MtpLayer) -> layout.NativeDraftLayer:
        return layout.NativeDraftLayer(
            embed=self._address(layer.embed),
            token_norm=self._norm(layer.token_norm),
            hidden_norm=self._norm(layer.hidden_norm),
            fuse=self._linear(layer.fuse),
            block=self._block(layer.block),
            norm=self._norm(layer.norm),
            head=self._linear(layer.head),
        )

    def _linears(self, products: Iterable[Linear]) -> list[layout.NativeLinear]:
        return [self._linear(product) for product in products]

    def _linear(self, product: Linear | HeadLinear | None) -> layout.NativeLinear:
        """The struct of a product; an absent one has no outputs."""
        if product is None:
            return layout.NativeLinear()
        if not isinstance(product, PanelLinear | PanelHeads):
            raise ModelError(f"a product is a {type(product).__name__}, not panels: the native step cannot use it")
        self._kept.append(product)
        return product.linear

    def _norm(self, norm: RmsNorm | None) -> int | None:
        return None if norm is None else self._floats(norm.weight)

    def _floats(self, values: Tensor) -> int:
        return self._address(values.float())

    def _address(self, values: Tensor) -> int:
        values = values.contiguous()
        self._kept.append(values)
        return values.data_ptr()


def bind_cache(cache: KvCache) -> layout.Cache:
    """The struct of a KV cache, valid while the cache exists."""
    form = layout.Form.INT8 if cache.form == "int8" else _FORMS[cache.dtype]
    return layout.Cache(
        base=cache.tensor.data_ptr(),
        form=form,
        blocks=cache.num_blocks,
        layers=cache.num_layers,
        block_tokens=cache.block_tokens,
        row_bytes=cache.row_bytes,
        head_bytes=cache.layout.head_bytes,
        rope_offset=cache.layout.rope_offset_bytes,
        scale_offset=cache.layout.scale_offset_bytes,
        width=1 if cache.split is None else cache.split.split.width,
        places=None if cache.split is None else cache.places.data_ptr(),
    )
