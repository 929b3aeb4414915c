"""gpt-oss: grouped attention with sinks, a window in every other layer, and experts with clamped gates."""

from serving.model.architecture import Architecture, ClampedGate, ExpertShape, GateShape, LayerShape
from serving.model.config_keys import ConfigKeys
from serving.model.families.grouped import Variant, grouped_attention
from serving.model.families.shared_keys import architecture, checked


def read(keys: ConfigKeys) -> Architecture:
    """gpt-oss. Raises: KeyError, TypeError, ModelError: see `architecture`."""
    count, bias = keys.layers(), keys.flag("attention_bias", True)
    for needed in ("layer_types", "sliding_window"):
        if keys.raw.get(needed) is None:
            raise KeyError(needed)
    if not (keys.raw.get("rope_parameters") or keys.raw.get("rope_scaling")):
        raise KeyError("rope_scaling")
    variant = Variant(bias, bias, theta=150000.0, head_dim=64, sinks=True, windows=True)
    attention = grouped_attention(keys, count, variant)
    # A softmax over the chosen experts equals one over all, normalised.
    gate = GateShape(sigmoid=False, choice_bias=False, groups=1, kept_groups=1, normalise=True, factor=1.0, bias=True)
    experts = ExpertShape(
        experts=keys.whole("num_local_experts", keys.optional("num_experts")),
        per_token=keys.whole("num_experts_per_tok", keys.optional("experts_per_token")),
        width=keys.whole("intermediate_size"),
        shared_width=0,
        gate=gate,
        bias=True,
        clamped=ClampedGate(keys.number("swiglu_alpha", 1.702), keys.number("swiglu_limit", 7.0, least=0)),
    )
    keys.known("initial_context_length", "num_experts", "experts_per_token")  # duplicates of others
    layers = tuple(LayerShape(one, checked(experts)) for one in attention.layers)
    return architecture(keys, layers, attention.rope, norm_eps=1e-5, limit=attention.limit)
