"""A model's shape from its Hugging Face `config.json`: supported architectures and their keys.

An architecture that is not in `PRICED_FAMILIES` is refused by name.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from hardware.cost.attention import AttentionSizes, GroupedAttentionSizes, IndexerSizes, LatentAttentionSizes
from hardware.cost.model_shape import ModelShape
from hardware.cost.weight_format import (
    BF16,
    FP8,
    W4A8,
    W4A16,
    W8A8,
    W8A16,
    KvFormat,
    ModelFormats,
    WeightFormat,
    formats_named,
)
from hardware.errors import SpecError
from hardware.nesting import parse_json
from hardware.regular_file import read_regular_text

_LARGEST = 2**31 - 1
"""Beyond it times and bytes would be no numbers any more."""
_EXPERT_KEYS = ("n_routed_experts", "num_experts", "num_local_experts")
_DRAFT_KEYS = ("num_nextn_predict_layers", "num_mtp_layers")


@dataclass(frozen=True, slots=True)
class PricedFamily:
    """One `model_type`: its attention, its feed-forward, and defaults for missing keys.

    Attributes:
        latent: latent attention; else grouped.
        experts: some layers have routed experts.
        first_dense: default number of layers before the first one with experts.
        head_dim: default width of a head; 0 = the hidden width divided by the heads.
        tied: default of whether the head is the embedding.
        expert_width: key of an expert's width.
        index_heads: default of an indexer; 0 = attention is not sparse.
    """

    latent: bool = False
    experts: bool = False
    first_dense: int = 0
    head_dim: int = 0
    tied: bool = False
    expert_width: str = "moe_intermediate_size"
    index_heads: int = 0


PRICED_FAMILIES: Mapping[str, PricedFamily] = {
    "deepseek_v2": PricedFamily(latent=True, experts=True),
    "deepseek_v3": PricedFamily(latent=True, experts=True),
    "deepseek_v32": PricedFamily(latent=True, experts=True, first_dense=3, index_heads=64),
    "glm4_moe": PricedFamily(experts=True, first_dense=1),
    "glm4_moe_lite": PricedFamily(latent=True, experts=True, first_dense=1),
    "glm_moe_dsa": PricedFamily(latent=True, experts=True, first_dense=3, index_heads=32),
    "gpt_oss": PricedFamily(experts=True, head_dim=64, expert_width="intermediate_size"),
    "kimi_k2": PricedFamily(latent=True, experts=True),
    "llama": PricedFamily(),
    "ministral3": PricedFamily(head_dim=128),
    "mistral": PricedFamily(),
    "qwen2": PricedFamily(),
    "qwen3": PricedFamily(head_dim=128),
    "qwen3_moe": PricedFamily(experts=True, head_dim=128),
    "smollm3": PricedFamily(tied=True),
    "youtu": PricedFamily(latent=True, tied=True),
}
"""By `model_type`. Source: the configuration classes of transformers 5.24."""


def shape_from_config(
    config: Mapping[str, object], name: str, *, weights: str = "", kv: KvFormat | None = None
) -> ModelShape:
    """Read a shape from the contents of a `config.json`.

    Args:
        config: its top level; unknown keys are ignored, as every checkpoint has many.
        name: what to call the model in messages and reports.
        weights: their formats by name, see `formats_named`; empty = as the configuration states.
        kv: format of the cache; None = as the configuration states.
    Raises: SpecError for an architecture that is not known, naming those that are; or naming the first key that is
        missing or no whole number; or a quantisation that is not priced.
    """
    kind = config.get("model_type")
    family = PRICED_FAMILIES.get(kind) if isinstance(kind, str) else None
    if family is None:
        what = "config has no model_type" if kind is None else f"model_type {repr(kind)[:40]} is not known"
        raise SpecError(f"model {name}: {what}; the cost model supports {', '.join(PRICED_FAMILIES)}")
    keys = _Keys(config, name)
    layers = keys.whole("num_hidden_layers")
    dense = _dense_layers(keys, family, layers)
    tied = config.get("tie_word_embeddings")
    if weights:
        formats = formats_named(weights, experts=family.experts)
    else:
        formats = checkpoint_formats(config, name, experts=family.experts)
    return ModelShape(
        name=name,
        hidden=keys.whole("hidden_size"),
        layers=layers,
        attention=_latent(keys, family, layers) if family.latent else _grouped(keys, family, layers),
        dense_layers=dense,
        dense_width=keys.whole("intermediate_size") if dense or not family.experts else 0,
        expert_width=keys.whole(family.expert_width) if family.experts else 0,
        experts=keys.first(_EXPERT_KEYS) if family.experts else 0,
        active_experts=keys.whole("num_experts_per_tok") if family.experts else 0,
        shared_experts=keys.whole("n_shared_experts", 0) if family.experts else 0,
        vocab=keys.whole("vocab_size"),
        mtp_layers=keys.first(_DRAFT_KEYS, 0) if family.experts else 0,
        tied_head=family.tied if tied is None else bool(tied),
        formats=replace(formats, kv=kv or formats.kv),
    )


def load_shape(path: Path, *, weights: str = "", kv: KvFormat | None = None) -> ModelShape:
    """Read a shape from a checkpoint folder or its `config.json`.

    Args:
        weights, kv: as for `shape_from_config`.
    Raises: SpecError if there is no readable config of an architecture that is known.
    Effects: reads one file.
    """
    folder = (path if path.is_dir() else path.parent).absolute().name
    return shape_from_config(config_of(path), folder, weights=weights, kv=kv)


def config_of(path: Path) -> dict[str, object]:
    """Read the `config.json` of a checkpoint folder, or that file.

    Raises: SpecError if it cannot be read.
    Effects: reads one file.
    """
    file = path / "config.json" if path.is_dir() else path
    if file.exists() and not file.is_file():
        raise SpecError(f"{file}: is no regular file; give a checkpoint folder or its config.json")
    try:
        config = parse_json(read_regular_text(file))
    except OSError as error:
        raise SpecError(f"{file}: {error.strerror or error}; give a checkpoint folder or its config.json") from error
    except (ValueError, RecursionError) as error:
        raise SpecError(f"{file}: no JSON: {error}") from error
    if not isinstance(config, dict):
        raise SpecError(f"{file}: is no JSON object")
    return config


@dataclass(frozen=True, slots=True)
class _Keys:
    """Keys of one configuration, read by kind."""

    config: Mapping[str, object]
    name: str

    def whole(self, key: str, default: int | None = None) -> int:
        """A whole number; the default where it is missing or null.

        Raises: SpecError naming the key.
        """
        value = self.config.get(key)
        if value is None:
            if default is not None:
                return default
            raise SpecError(f"model {self.name}: config has no {key}")
        return self._checked(key, value)

    def first(self, names: tuple[str, ...], default: int | None = None) -> int:
        """The first of several keys for the same number that is there.

        Raises: SpecError naming the first key where none is.
        """
        return self.whole(next((key for key in names if self.config.get(key) is not None), names[0]), default)

    def listed(self, key: str) -> list[object]:
        """A list; empty where it is missing or null.

        Raises: SpecError naming the key.
        """
        value = self.config.get(key)
        if value is not None and not isinstance(value, list):
            raise SpecError(f"model {self.name}: {key} is {repr(value)[:40]}, not a list")
        return value or []

    def _checked(self, key: str, value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise SpecError(f"model {self.name}: {key} is {repr(value)[:40]}, not a whole number")
        if not 0 <= value <= _LARGEST:
            raise SpecError(f"model {self.name}: {key} is {str(value)[:40]}, which no model has")
        return value


def _latent(keys: _Keys, family: PricedFamily, layers: int) -> AttentionSizes:
    return LatentAttentionSizes(
        heads=keys.whole("num_attention_heads"),
        q_rank=keys.whole("q_lora_rank", 0),
        kv_rank=keys.whole("kv_lora_rank"),
        rope_dim=keys.whole("qk_rope_head_dim"),
        nope_dim=keys.whole("qk_nope_head_dim"),
        v_dim=keys.whole("v_head_dim"),
        indexer=_indexer(keys, family, layers) if family.index_heads else None,
    )


def _indexer(keys: _Keys, family: PricedFamily, layers: int) -> IndexerSizes:
    return IndexerSizes(
        heads=keys.whole("index_n_heads", family.index_heads),
        dim=keys.whole("index_head_dim", 128),
        top_k=keys.whole("index_topk", 2048),
        layers=_choosing_layers(keys, layers),
    )


def _choosing_layers(keys: _Keys, layers: int) -> int:
    """Layers with an indexer of their own: from a list, else a pattern of F and S, else a fixed interval.

    Raises: SpecError for a list or a pattern that is none for these layers.
    """
    if kinds := keys.listed("indexer_types"):
        if len(kinds) != layers or not set(map(str, kinds)) <= {"full", "shared"}:
            raise SpecError(f'model {keys.name}: indexer_types is no list of "full" or "shared" for {layers} layers')
        return kinds.count("full")
    pattern = keys.config.get("index_topk_pattern")
    if pattern is not None:
        if not isinstance(pattern, str) or len(pattern) < layers or set(pattern) - {"F", "S"}:
            raise SpecError(
                f"model {keys.name}: index_topk_pattern is {repr(pattern)[:40]}, no F or S for each of {layers} layers"
            )
        return pattern[:layers].count("F")
    step, offset = max(keys.whole("index_topk_freq", 1), 1), keys.whole("index_skip_topk_offset", 2)
    return sum(max(layer - offset + 1, 0) % step == 0 for layer in range(layers))


def _grouped(keys: _Keys, family: PricedFamily, layers: int) -> AttentionSizes:
    heads = keys.whole("num_attention_heads")
    width = keys.whole("head_dim", family.head_dim or keys.whole("hidden_size") // max(heads, 1))
    windowed = _windowed_layers(keys, layers)
    window = keys.whole("sliding_window") if windowed else None
    return GroupedAttentionSizes(heads, keys.whole("num_key_value_heads", heads), width, window, windowed)


def _dense_layers(keys: _Keys, family: PricedFamily, layers: int) -> int:
    """Layers with an ordinary feed-forward: from a list, else the first ones, and those skipped by the sparse step."""
    if not family.experts:
        return layers
    if types := keys.listed("mlp_layer_types"):
        if len(types) != layers or not set(map(str, types)) <= {"dense", "sparse"}:
            raise SpecError(f'model {keys.name}: mlp_layer_types is no list of "dense" or "sparse" for {layers} layers')
        return types.count("dense")
    first = keys.whole("first_k_dense_replace", family.first_dense)
    if first > layers:
        raise SpecError(f"model {keys.name}: first_k_dense_replace is {first}: more dense layers than layers")
    frequency, step = (max(1, keys.whole(key, 1)) for key in ("moe_layer_freq", "decoder_sparse_step"))
    left_out = keys.listed("mlp_only_layers")
    sparse = sum(
        layer % frequency == 0 and (layer + 1) % step == 0 and layer not in left_out for layer in range(first, layers)
    )
    return layers - sparse


def _windowed_layers(keys: _Keys, layers: int) -> int:
    """Layers with a sliding window: from a list, else all from `max_window_layers` on if windows are enabled."""
    if keys.config.get("sliding_window") is None:
        return 0
    if kinds := keys.listed("layer_types"):
        return kinds.count("sliding_attention")
    in_use = keys.config.get("use_sliding_window") is not False
    return max(layers - keys.whole("max_window_layers", 0), 0) if in_use else 0


# Formats that a checkpoint states in `quantization_config` of its `config.json`; without one, it is BF16.
#
# What is read: block-scaled FP8 (DeepSeek, Qwen3, GLM), `compressed-tensors` (vLLM's tools, `cloudmatrix quantize`),
# MXFP4 (gpt-oss), AWQ and GPTQ. Anything else is refused by name: the user then specifies the format.

_BY_BITS: Mapping[tuple[int, bool, bool], WeightFormat] = {
    (8, False, True): W8A8,
    (4, False, True): W4A8,
    (8, False, False): W8A16,
    (4, False, False): W4A16,
    (8, True, True): FP8,
}
"""By bits of a weight, whether it is floating point, and whether activations are quantised too."""
_SAY = "set its format with --weights, or [simulation] weights"


def checkpoint_formats(config: Mapping[str, object], name: str, *, experts: bool) -> ModelFormats:
    """Formats of a checkpoint.

    Args:
        config: top level of its `config.json`.
        name: of the model, for messages.
        experts: the model has some.
    Raises: SpecError naming the quantisation that is not read.
    """
    given = config.get("quantization_config")
    if given is None:
        return ModelFormats(BF16, BF16)
    if not isinstance(given, dict):
        raise SpecError(f"model {name}: quantization_config is no JSON object; {_SAY}")
    method = given.get("quant_method")
    if method == "compressed-tensors":
        return _compressed(given, name, experts=experts)
    if method in ("awq", "gptq"):
        found = _by_bits(given.get("bits"), floating=False, activations=False)
    else:
        found = FP8 if method == "fp8" else None
    if found is not None:
        return ModelFormats(found, found)
    if method == "mxfp4":
        return formats_named("mxfp4", experts=experts)
    what = f"{method} of {given.get('bits')!r} bits" if method in ("awq", "gptq") else f"{method!r}"
    raise SpecError(f"model {name}: quantisation {what[:60]} is not priced; {_SAY}")


def _by_bits(bits: object, *, floating: bool, activations: bool) -> WeightFormat | None:
    return _BY_BITS.get((bits, floating, activations)) if isinstance(bits, int) else None


def _compressed(given: Mapping[str, object], name: str, *, experts: bool) -> ModelFormats:
    """Formats of `compressed-tensors`: a group for all, or one that names experts and one that names the rest."""
    groups = given.get("config_groups")
    if not isinstance(groups, dict) or not groups:
        raise SpecError(f"model {name}: quantization_config.config_groups names no group; {_SAY}")
    of_experts: WeightFormat | None = None
    of_rest: WeightFormat | None = None
    for label, group in groups.items():
        found = _of_group(group, f"model {name}: quantization_config.config_groups.{label}")
        targets = [str(target) for target in group.get("targets") or ["Linear"]]
        named = [target for target in targets if "expert" in target]
        if named:
            of_experts = found
        if len(named) < len(targets):
            of_rest = found
    ignored = given.get("ignore")
    kept = isinstance(ignored, list) and any("attn" in str(one) for one in ignored)
    attention = BF16 if kept or of_rest is None else of_rest
    whole = of_experts or of_rest or BF16
    return ModelFormats(attention, whole if experts else attention, _kv(given.get("kv_cache_scheme")))


def _of_group(group: object, where: str) -> WeightFormat:
    weights = group.get("weights") if isinstance(group, dict) else None
    if not isinstance(group, dict) or not isinstance(weights, dict):
        raise SpecError(f"{where} does not define the weights; {_SAY}")
    bits, floating = weights.get("num_bits"), weights.get("type") == "float"
    activations = group.get("input_activations")
    act = activations.get("num_bits") if isinstance(activations, dict) else None
    found = _by_bits(bits, floating=floating, activations=act is not None) if act in (None, 8) else None
    if found is None:
        kind = f"{bits!r} bits of {weights.get('type')!r}, activations of {act!r} bits"
        raise SpecError(f"{where}: weights of {kind} are not priced; {_SAY}")
    return found


def _kv(scheme: object) -> KvFormat:
    if not isinstance(scheme, dict):
        return "bf16"
    return "fp8" if scheme.get("type") == "float" else "int8"
