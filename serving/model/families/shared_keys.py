"""Configuration keys that all families share."""

from serving.errors import ModelError
from serving.model.architecture import (
    Architecture,
    ContextLimit,
    DenseShape,
    ExpertShape,
    FeedShape,
    GateShape,
    LayerShape,
)
from serving.model.config_keys import ConfigKeys
from serving.model.quantization import read_quantization
from serving.model.rope_config import RopeConfig

_DTYPES = {"bfloat16": "bfloat16", "float32": "float32", "float16": "float32"}


def architecture(
    keys: ConfigKeys,
    layers: tuple[LayerShape, ...],
    rope: RopeConfig,
    drafts: tuple[LayerShape, ...] = (),
    *,
    tied: bool = False,
    norm_eps: float = 1e-6,
    limit: ContextLimit | None = None,
    unused: tuple[str, ...] = (),
) -> Architecture:
    """A model's architecture from its layers and the remaining keys.

    Args:
        tied: default for whether the head shares the embedding.
        norm_eps: default value.
        limit: the model's `computed_up_to`.
        unused: as in `Architecture`.
    Raises: KeyError, TypeError or ModelError for a missing, malformed or unsupported key.
    """
    keys.among("hidden_act", "silu")
    keys.known("quantization_config")
    raw, longest = keys.raw, keys.whole("max_position_embeddings")
    bos = raw.get("bos_token_id")
    return Architecture(
        model_type=str(raw.get("model_type")),
        vocab_size=keys.whole("vocab_size"),
        hidden_size=keys.whole("hidden_size"),
        layers=layers,
        drafts=drafts,
        rope=rope,
        rms_norm_eps=keys.number("rms_norm_eps", norm_eps, least=0),
        max_position_embeddings=longest if limit is None else min(longest, limit.tokens),
        tie_word_embeddings=keys.flag("tie_word_embeddings", tied),
        dtype=_DTYPES[str(raw.get("dtype") or raw.get("torch_dtype") or "bfloat16")],
        quantization=read_quantization(raw),
        bos_token_id=bos if isinstance(bos, int) else None,
        eos_token_ids=(),
        computed_up_to=limit if limit is not None and limit.tokens < longest else None,
        unused=unused,
    )


def feeds(keys: ConfigKeys, count: int, experts: ExpertShape, dense: list[bool]) -> tuple[FeedShape, ...]:
    """Feed-forward of each of `count` layers, dense where `dense` is True."""
    width = keys.whole("intermediate_size") if any(dense) else keys.whole("intermediate_size", 1)
    return tuple(DenseShape(width) if dense[layer] else experts for layer in range(count))


def leading(count: int, dense: int) -> list[bool]:
    """Whether each of `count` layers is dense, if the first `dense` are."""
    return [layer < dense for layer in range(count)]


def typed(keys: ConfigKeys, count: int, otherwise: list[bool]) -> list[bool]:
    """Whether `mlp_layer_types` marks each of `count` layers as dense; `otherwise` without that key."""
    kinds = keys.names("mlp_layer_types", count, ("sparse", "dense"))
    return otherwise if kinds is None else [kind == "dense" for kind in kinds]


def checked(experts: ExpertShape) -> ExpertShape:
    """Return `experts` after checking that there are enough for each token's choices.

    Raises: ModelError if there are too few.
    """
    gate, count = experts.gate, experts.experts
    if count % gate.groups or gate.kept_groups > gate.groups:
        raise ModelError(f"{count} experts cannot form {gate.groups} groups of which {gate.kept_groups} are kept")
    reachable = count if gate.groups == 1 else count // gate.groups * gate.kept_groups
    if experts.per_token > reachable:
        raise ModelError(f"num_experts_per_tok = {experts.per_token} exceeds the {reachable} in reach")
    if gate.sigmoid and count // gate.groups < 2:
        raise ModelError("an expert group needs at least two experts")
    return experts


def v3_experts(keys: ConfigKeys, *, shared: int = 0) -> ExpertShape:
    """Routed experts in DeepSeek-V3's configuration form, with its choice (`noaux_tc`).

    Args:
        shared: default number of shared experts.
    Raises: KeyError, TypeError or ModelError, as `architecture`.
    """
    width = keys.whole("moe_intermediate_size")
    gate = GateShape(
        sigmoid=True,
        choice_bias=True,
        groups=keys.whole("n_group", 1),
        kept_groups=keys.whole("topk_group", 1),
        normalise=keys.flag("norm_topk_prob", True),
        factor=keys.number("routed_scaling_factor", 1.0),
    )
    keys.among("scoring_func", "sigmoid")
    keys.among("topk_method", "noaux_tc")
    keys.among("moe_layer_freq", 1)
    keys.among("mlp_bias", False)
    return checked(
        ExpertShape(
            experts=keys.whole("n_routed_experts"),
            per_token=keys.whole("num_experts_per_tok"),
            width=width,
            shared_width=keys.whole("n_shared_experts", shared, least=0) * width,
            gate=gate,
        )
    )
