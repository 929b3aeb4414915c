"""DeepSeek-V2 and -V3 (GLM-4.7-Flash's files, too): GGUF's `deepseek2`.

Older files have `attn_kv_b`; newer ones have it in two parts, and key and value lengths of both the latent form and
the heads.
"""

from dataclasses import dataclass

from serving.errors import ModelError
from serving.tools.importing.description import Description, ModelFrame, Part, expansion, experts, net, norms, same
from serving.tools.importing.gguf_file import GgufFile
from serving.tools.importing.gguf_keys import ArchitectureKeys, rope_settings

_SOFTMAX, _SIGMOID = 1, 2
"""Values of `expert_gating_func`."""
_GROUPS = {160: (8, 3), 256: (8, 4)}
"""Groups of experts, and the number of them used per token, by the number of experts, for old files without these
keys. Source: config.json of DeepSeek-V2 and DeepSeek-V3."""


@dataclass(frozen=True, slots=True)
class _Shape:
    """Sizes of a model; names as in config.json."""

    frame: ModelFrame
    q_lora_rank: int | None
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int
    moe_intermediate_size: int
    n_routed_experts: int
    n_shared_experts: int
    first_k_dense_replace: int

    @classmethod
    def read(cls, file: GgufFile, keys: ArchitectureKeys) -> "_Shape":
        frame = ModelFrame.of(file, keys)
        latent, rope = keys.whole("attention.kv_lora_rank"), keys.whole("rope.dimension_count")
        keys.pass_over("attention.head_count_kv", "attention.key_length", "attention.value_length")
        ending = "_mla" if keys.has("attention.key_length_mla") else ""
        nope = keys.whole(f"attention.key_length{ending}") - rope
        if nope < 1 or rope % 2:
            raise ModelError(f"deepseek2.attention.key_length{ending} is {nope + rope}, of which {rope} are rotated")
        if not keys.whole("expert_count", 0, least=0):
            raise ModelError("it has no experts: a dense model is not read of 'deepseek2'")
        return cls(
            frame=frame,
            q_lora_rank=keys.whole("attention.q_lora_rank") if keys.has("attention.q_lora_rank") else None,
            kv_lora_rank=latent,
            qk_nope_head_dim=nope,
            qk_rope_head_dim=rope,
            v_head_dim=keys.whole(f"attention.value_length{ending}"),
            moe_intermediate_size=keys.whole("expert_feed_forward_length"),
            n_routed_experts=keys.whole("expert_count"),
            n_shared_experts=keys.whole("expert_shared_count", 0, least=0),
            first_k_dense_replace=keys.whole("leading_dense_block_count", 0, least=0),
        )

    def config(self) -> dict[str, object]:
        names = [name for name in self.__slots__ if name != "frame"]
        return {name: getattr(self, name) for name in names} | {"num_key_value_heads": self.frame.heads}


def describe_deepseek(file: GgufFile, architecture: str) -> Description:
    """Describe a `deepseek2` model.

    Raises: ModelError if a key is missing, out of range, or has an unsupported meaning.
    """
    keys = ArchitectureKeys(file, architecture)
    shape = _Shape.read(file, keys)
    gate = keys.whole("expert_gating_func", _SOFTMAX)
    if gate not in (_SOFTMAX, _SIGMOID):
        raise ModelError(f"{architecture}.expert_gating_func is {gate}; 1 (softmax) and 2 (sigmoid) are read")
    if keys.whole("nextn_predict_layers", 0, least=0):
        raise ModelError(f"{architecture}.nextn_predict_layers: draft layers are not read of this architecture")
    v3 = gate == _SIGMOID
    config = {
        "architectures": ["DeepseekV3ForCausalLM" if v3 else "DeepseekV2ForCausalLM"],
        "model_type": "deepseek_v3" if v3 else "deepseek_v2",
        **shape.frame.config(keys),
        **shape.config(),
        **rope_settings(file, keys, shape.qk_rope_head_dim),
        **_routing(keys, shape.n_routed_experts, v3=v3),
        "attention_bias": False,
        "moe_layer_freq": 1,
        "num_nextn_predict_layers": 0,
    }
    keys.refuse_unread()
    parts = shape.frame.ends()
    for layer in range(shape.frame.layers):
        parts += _attention(file, shape, layer) + _feed(shape, layer, v3=v3)
    return Description(config, parts, _both_forms(file, shape.frame.layers))


def _routing(keys: ArchitectureKeys, count: int, *, v3: bool) -> dict[str, object]:
    groups, kept = _GROUPS.get(count, (1, 1))
    groups = keys.whole("expert_group_count", groups, least=0) or 1
    kept = keys.whole("expert_group_used_count", min(kept, groups), least=0) or 1
    grouped = "noaux_tc" if v3 else "group_limited_greedy" if groups > 1 else "greedy"
    return {
        "num_experts_per_tok": keys.whole("expert_used_count"),
        "n_group": groups,
        "topk_group": kept,
        "topk_method": grouped,
        "scoring_func": "sigmoid" if v3 else "softmax",
        "norm_topk_prob": keys.flag("expert_weights_norm", False),
        "routed_scaling_factor": keys.number("expert_weights_scale", 1.0) or 1.0,
    }


def _both_forms(file: GgufFile, layers: int) -> frozenset[str]:
    """Names of both parts of `attn_kv_b` in files that have it, too."""
    doubled = (layer for layer in range(layers) if f"blk.{layer}.attn_kv_b.weight" in file.tensors)
    return frozenset(f"blk.{layer}.attn_{part}_b.weight" for layer in doubled for part in "kv")


def _attention(file: GgufFile, shape: _Shape, number: int) -> list[Part]:
    block, layer, hidden = f"blk.{number}.", f"model.layers.{number}.", shape.frame.hidden_size
    attention, heads, latent = f"{layer}self_attn.", shape.frame.heads, shape.kv_lora_rank
    query = heads * (shape.qk_nope_head_dim + shape.qk_rope_head_dim)
    nope, value, rank = shape.qk_nope_head_dim, shape.v_head_dim, shape.q_lora_rank
    found = norms(block, layer, hidden)
    if rank is None:
        found.append(same(f"{block}attn_q.weight", (query, hidden), f"{attention}q_proj.weight"))
    else:
        found += [
            same(f"{block}attn_q_a.weight", (rank, hidden), f"{attention}q_a_proj.weight"),
            same(f"{block}attn_q_a_norm.weight", (rank,), f"{attention}q_a_layernorm.weight"),
            same(f"{block}attn_q_b.weight", (query, rank), f"{attention}q_b_proj.weight"),
        ]
    row = latent + shape.qk_rope_head_dim
    found += [
        same(f"{block}attn_kv_a_mqa.weight", (row, hidden), f"{attention}kv_a_proj_with_mqa.weight"),
        same(f"{block}attn_kv_a_norm.weight", (latent,), f"{attention}kv_a_layernorm.weight"),
        same(f"{block}attn_output.weight", (hidden, heads * value), f"{attention}o_proj.weight"),
    ]
    whole, target = f"{block}attn_kv_b.weight", f"{attention}kv_b_proj.weight"
    if whole in file.tensors:
        return [*found, same(whole, (heads * (nope + value), latent), target)]
    keys, values = (heads, latent, nope), (heads, value, latent)
    return [*found, expansion((f"{block}attn_k_b.weight", keys), (f"{block}attn_v_b.weight", values), target)]


def _feed(shape: _Shape, number: int, *, v3: bool) -> list[Part]:
    block, mlp, hidden = f"blk.{number}.", f"model.layers.{number}.mlp.", shape.frame.hidden_size
    if number < shape.first_k_dense_replace:
        return net(block, mlp, "", shape.frame.feed_width, hidden)
    count, width = shape.n_routed_experts, shape.moe_intermediate_size
    sizes = {"gate": (count, width, hidden), "up": (count, width, hidden), "down": (count, hidden, width)}
    found = [same(f"{block}ffn_gate_inp.weight", (count, hidden), f"{mlp}gate.weight")]
    for name, size in sizes.items():
        found.append(experts(f"{block}ffn_{name}_exps.weight", size, f"{mlp}experts.{{}}.{name}_proj.weight"))
    if v3:
        found.append(same(f"{block}exp_probs_b.bias", (count,), f"{mlp}gate.e_score_correction_bias"))
    if shape.n_shared_experts:
        found += net(block, f"{mlp}shared_experts.", "_shexp", width * shape.n_shared_experts, hidden)
    return found
