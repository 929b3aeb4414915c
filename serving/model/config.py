"""A checkpoint folder's description of its model, as frozen values.

Read from Hugging Face's `config.json` (and `generation_config.json` for the end tokens). Imports no torch: the gateway
reads the vocabulary size, the context length and the end tokens from here without paying for the tensor library.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from hardware.nesting import parse_json
from serving.errors import ModelError
from serving.model.config_values import number, whole
from serving.model.quantization import Quantization, read_quantization
from serving.model.rope_config import RopeConfig, read_rope
from serving.regular_file import MOST_JSON_BYTES, read_regular

TopkMethod = Literal["noaux_tc", "greedy", "group_limited_greedy"]

_ARCHITECTURES = ("deepseek_v3", "deepseek_v2", "kimi_k2")
_DTYPES = {"bfloat16": "bfloat16", "float32": "float32", "float16": "float32"}


@dataclass(frozen=True, slots=True)
class Architecture:
    """Shape and switches of a DeepSeek-V2/V3-style model; names as in `config.json`.

    Widths are counted in elements, lengths in tokens. Layers `0 ... first_k_dense_replace - 1` are dense, the others
    have experts. `q_lora_rank` is None where queries are projected directly.
    """

    model_type: str
    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    q_lora_rank: int | None
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int
    intermediate_size: int
    moe_intermediate_size: int
    first_k_dense_replace: int
    n_routed_experts: int
    num_experts_per_tok: int
    n_shared_experts: int
    n_group: int
    topk_group: int
    topk_method: TopkMethod
    norm_topk_prob: bool
    routed_scaling_factor: float
    rms_norm_eps: float
    max_position_embeddings: int
    attention_bias: bool
    tie_word_embeddings: bool
    num_nextn_predict_layers: int
    rope: RopeConfig
    dtype: str
    """`bfloat16` or `float32`: what `dtype="auto"` loads as."""
    quantization: Quantization
    """How the checkpoint stores its matrices."""
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]
    bf16_results: bool = False
    """Not of the checkpoint: the result of a routed expert is rounded to bfloat16 before it is weighted and added, as
    where experts lie on other devices and answer with messages of that type."""

    @property
    def qk_head_dim(self) -> int:
        """Width of one query or key head, position-free and rotary part together."""
        return self.qk_nope_head_dim + self.qk_rope_head_dim

    @property
    def latent_dim(self) -> int:
        """Elements that one token leaves in the KV cache of one layer: normalised latent, then rotated rope key."""
        return self.kv_lora_rank + self.qk_rope_head_dim

    @property
    def softmax_scale(self) -> float:
        """Factor on attention scores; YaRN with `mscale_all_dim` raises it."""
        return float(self.qk_head_dim**-0.5 * self.rope.score_factor)

    def is_dense(self, layer: int) -> bool:
        """Whether `layer` has one feed-forward net instead of experts."""
        return layer < self.first_k_dense_replace

    @classmethod
    def from_folder(cls, path: str | Path) -> "Architecture":
        """Read a checkpoint folder's configuration.

        Args:
            path: folder with `config.json` and, optionally, `generation_config.json`.
        Raises: ModelError if the folder or file is missing, unreadable, or of an architecture that is not served.
        Effects: reads files.
        """
        folder = Path(path)
        if not folder.is_dir():
            raise ModelError(f"model folder {folder} does not exist: give a folder with config.json and *.safetensors")
        raw = _read_json(folder / "config.json", required=True)
        generation = _read_json(folder / "generation_config.json", required=False)
        try:
            return _from_dict(raw, generation)
        except (KeyError, TypeError, ValueError) as error:
            raise ModelError(f"{folder / 'config.json'}: missing or malformed key {error}; re-export it") from error
        except ModelError as error:
            raise ModelError(f"{folder / 'config.json'}: {error}") from error


def _read_json(path: Path, *, required: bool) -> Mapping[str, object]:
    if not path.is_file():
        if required:
            raise ModelError(f"{path} is missing: give the folder of a Hugging Face checkpoint")
        return {}
    try:
        value = parse_json(read_regular(path, most_bytes=MOST_JSON_BYTES, within=path.parent))
    except (OSError, ValueError) as error:
        raise ModelError(f"{path} cannot be read as JSON ({error}): fetch it again") from error
    if not isinstance(value, dict):
        raise ModelError(f"{path} is not a JSON object: fetch it again")
    return value


def _from_dict(raw: Mapping[str, object], generation: Mapping[str, object]) -> Architecture:
    model_type = str(raw.get("model_type", "unknown"))
    if model_type not in _ARCHITECTURES:
        raise ModelError(f"architecture {model_type!r} is not served; serve one of {', '.join(_ARCHITECTURES)}")
    v2 = model_type == "deepseek_v2"
    _refuse_unsupported(raw, v2=v2)
    max_positions = whole(raw, "max_position_embeddings")
    config = Architecture(
        model_type=model_type,
        vocab_size=whole(raw, "vocab_size"),
        hidden_size=whole(raw, "hidden_size"),
        num_hidden_layers=whole(raw, "num_hidden_layers"),
        num_attention_heads=whole(raw, "num_attention_heads"),
        q_lora_rank=None if raw.get("q_lora_rank") is None else whole(raw, "q_lora_rank"),
        kv_lora_rank=whole(raw, "kv_lora_rank"),
        qk_nope_head_dim=whole(raw, "qk_nope_head_dim"),
        qk_rope_head_dim=whole(raw, "qk_rope_head_dim"),
        v_head_dim=whole(raw, "v_head_dim"),
        intermediate_size=whole(raw, "intermediate_size"),
        moe_intermediate_size=whole(raw, "moe_intermediate_size"),
        first_k_dense_replace=whole(raw, "first_k_dense_replace", 0, least=0),
        n_routed_experts=whole(raw, "n_routed_experts"),
        num_experts_per_tok=whole(raw, "num_experts_per_tok"),
        n_shared_experts=whole(raw, "n_shared_experts", 0, least=0),
        n_group=whole(raw, "n_group", 1),
        topk_group=whole(raw, "topk_group", 1),
        topk_method=_topk_method(raw, v2=v2),
        norm_topk_prob=bool(raw.get("norm_topk_prob", not v2)),
        routed_scaling_factor=number(raw, "routed_scaling_factor", 1.0),
        rms_norm_eps=number(raw, "rms_norm_eps", 1e-6, least=0),
        max_position_embeddings=max_positions,
        attention_bias=bool(raw.get("attention_bias", False)),
        tie_word_embeddings=bool(raw.get("tie_word_embeddings", False)),
        num_nextn_predict_layers=whole(raw, "num_nextn_predict_layers", 0, least=0),
        rope=read_rope(raw, max_positions, interleave=v2 or bool(raw.get("rope_interleave", True))),
        dtype=_DTYPES[str(raw.get("dtype") or raw.get("torch_dtype") or "bfloat16")],
        quantization=read_quantization(raw),
        bos_token_id=_optional_id(raw.get("bos_token_id")),
        eos_token_ids=_eos_ids(raw, generation),
    )
    _check(config)
    return config


def _refuse_unsupported(raw: Mapping[str, object], *, v2: bool) -> None:
    """Switches that other members of the family have and this implementation does not.

    Raises: ModelError naming the switch.
    """
    neutral: dict[str, tuple[object, ...]] = {
        "hidden_act": ("silu",),
        "moe_layer_freq": (1,),
        "mlp_bias": (False,),
        "scoring_func": ("softmax",) if v2 else ("sigmoid",),
    }
    for key, allowed in neutral.items():
        if raw.get(key) is not None and raw[key] not in allowed:
            raise ModelError(f"{key} = {raw[key]!r} is not supported; only {allowed[0]!r} is")


def _topk_method(raw: Mapping[str, object], *, v2: bool) -> TopkMethod:
    method = raw.get("topk_method") or ("greedy" if v2 else "noaux_tc")
    if v2 and method == "greedy":
        return "greedy"
    if v2 and method == "group_limited_greedy":
        return "group_limited_greedy"
    if not v2 and method == "noaux_tc":
        return "noaux_tc"
    raise ModelError(f"topk_method = {method!r} is not supported for {raw.get('model_type')}")


def _optional_id(value: object) -> int | None:
    return value if isinstance(value, int) else None


def _eos_ids(raw: Mapping[str, object], generation: Mapping[str, object]) -> tuple[int, ...]:
    value, place = raw.get("eos_token_id"), ""
    if "eos_token_id" in generation:
        value, place = generation["eos_token_id"], " of generation_config.json"
    ids = value if isinstance(value, list) else [] if value is None else [value]
    for one in ids:
        if not isinstance(one, int) or not -(2**31) <= one < 2**31:  # some write -1 for none
            raise TypeError(f"eos_token_id = {str(one)[:40]}{place}")
    return tuple(ids)


def _check(config: Architecture) -> None:
    experts, groups = config.n_routed_experts, config.n_group
    if experts % groups or config.topk_group > groups:
        raise ModelError(f"{experts} experts cannot form {groups} groups of which {config.topk_group} are kept")
    reachable = experts if config.topk_method == "greedy" else experts // groups * config.topk_group
    if config.num_experts_per_tok > reachable:
        raise ModelError(f"num_experts_per_tok = {config.num_experts_per_tok} exceeds the {reachable} in reach")
    if config.topk_method == "noaux_tc" and experts // groups < 2:
        raise ModelError("an expert group needs at least two experts")
    if config.qk_rope_head_dim % 2:
        raise ModelError(f"qk_rope_head_dim = {config.qk_rope_head_dim} must be even")
