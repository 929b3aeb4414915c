"""Qwen2 and Qwen2.5: Llama with a bias on queries, keys and values. Qwen3: no bias, but normalised heads."""

from serving.model.architecture import Architecture, ExpertShape, GateShape, LayerShape
from serving.model.config_keys import ConfigKeys
from serving.model.families.dense import dense_model
from serving.model.families.grouped import Variant, grouped_attention
from serving.model.families.shared_keys import architecture, checked, feeds

_QWEN3 = Variant(head_norm=True, head_dim=128)


def read_2(keys: ConfigKeys) -> Architecture:
    """Qwen2 or Qwen2.5. Raises: KeyError, TypeError, ModelError: see `architecture`."""
    return dense_model(keys, Variant(input_bias=True, output_bias=False))


def read_3(keys: ConfigKeys) -> Architecture:
    """Qwen3. Raises: as `read_2`."""
    return dense_model(keys, _QWEN3)


def read_3_moe(keys: ConfigKeys) -> Architecture:
    """Qwen3 with experts: softmax scores, no groups, no shared network. Raises: as `read_2`."""
    count = keys.layers()
    attention = grouped_attention(keys, count, _QWEN3)
    gate = GateShape(
        sigmoid=False,
        choice_bias=False,
        groups=1,
        kept_groups=1,
        normalise=keys.flag("norm_topk_prob", False),
        factor=1.0,
    )
    experts = ExpertShape(
        experts=keys.whole("num_experts", keys.optional("num_local_experts")),  # Hugging Face's name since version 5
        per_token=keys.whole("num_experts_per_tok"),
        width=keys.whole("moe_intermediate_size"),
        shared_width=0,
        gate=gate,
    )
    step, named = keys.whole("decoder_sparse_step", 1), keys.whole_list("mlp_only_layers")
    dense = [layer in named or (layer + 1) % step > 0 for layer in range(count)]
    layers = zip(attention.layers, feeds(keys, count, checked(experts), dense), strict=True)
    return architecture(keys, tuple(LayerShape(*one) for one in layers), attention.rope, limit=attention.limit)
