"""Sizes of a language model that decide how many operations and bytes a step takes.

Read from a Hugging Face `config.json` of the DeepSeek-V2/V3 family (also Kimi-K2): latent attention (MLA), routed and
shared experts, a few dense layers in front. Counts are of matrix weights; norms and biases are too small to matter.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hardware.errors import SpecError
from hardware.nesting import parse_json
from hardware.regular_file import read_regular_text
from hardware.units import Bytes, Flops

BF16_BYTES = 2
INT8_BYTES = 1
MESSAGE_ALIGNMENT = 512
"""Bytes that a dispatched token's message is padded to. Source: CloudMatrix384 paper 4.2.1."""
MESSAGE_EXTRA = 44
"""Scale and routing fields behind a dispatched token: 32 + 12 bytes. Source: public CANN kernels' window layout."""


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Sizes of one model. All counts are plain numbers; one multiply-accumulate is two operations.

    Attributes:
        q_rank: width of the compressed query; 0 when queries are projected directly.
        kv_rank: width of the cached latent.
        dense_layers: the first ones, with an ordinary feed-forward of width `dense_width`.
        active_experts: routed experts that each token visits.
        mtp_layers: multi-token-prediction modules that the checkpoint has.
    """

    name: str
    hidden: int
    layers: int
    dense_layers: int
    heads: int
    q_rank: int
    kv_rank: int
    rope_dim: int
    nope_dim: int
    v_dim: int
    expert_width: int
    dense_width: int
    experts: int
    active_experts: int
    shared_experts: int
    vocab: int
    mtp_layers: int

    def __post_init__(self) -> None:
        free = {"q_rank", "dense_layers", "shared_experts", "mtp_layers"}
        for name in (
            "hidden",
            "layers",
            "dense_layers",
            "heads",
            "q_rank",
            "kv_rank",
            "rope_dim",
            "nope_dim",
            "v_dim",
            "expert_width",
            "dense_width",
            "experts",
            "active_experts",
            "shared_experts",
            "vocab",
            "mtp_layers",
        ):
            if getattr(self, name) < (0 if name in free else 1):
                raise SpecError(f"model {self.name}: {name} is {getattr(self, name)}, which no model can have")
        if self.dense_layers > self.layers or self.active_experts > self.experts:
            raise SpecError(f"model {self.name}: more dense layers than layers, or more active experts than experts")

    # --- weights of one layer ----------------------------------------------------------------------------------
    @property
    def moe_layers(self) -> int:
        """Layers with routed experts."""
        return self.layers - self.dense_layers

    @property
    def prolog_weights(self) -> int:
        """Query and latent projections: everything before core attention, without the absorbed matrices."""
        queries = self.heads * (self.nope_dim + self.rope_dim)
        if self.q_rank:
            q = self.hidden * self.q_rank + self.q_rank * queries
        else:
            q = self.hidden * queries
        return q + self.hidden * (self.kv_rank + self.rope_dim)

    @property
    def key_up_weights(self) -> int:
        """Latent to keys; decode folds it into the query (absorption), in BF16."""
        return self.heads * self.nope_dim * self.kv_rank

    @property
    def value_up_weights(self) -> int:
        """Latent to values; decode applies it to the output (absorption), in BF16."""
        return self.heads * self.v_dim * self.kv_rank

    @property
    def output_weights(self) -> int:
        """Output projection of attention."""
        return self.heads * self.v_dim * self.hidden

    @property
    def attention_weights(self) -> int:
        """All of one layer's attention."""
        return self.prolog_weights + self.key_up_weights + self.value_up_weights + self.output_weights

    @property
    def expert_weights(self) -> int:
        """One expert: gate, up and down matrices."""
        return 3 * self.hidden * self.expert_width

    @property
    def dense_weights(self) -> int:
        """Feed-forward of one dense layer."""
        return 3 * self.hidden * self.dense_width

    @property
    def router_weights(self) -> int:
        """Gate that scores the experts."""
        return self.hidden * self.experts

    @property
    def head_weights(self) -> int:
        """LM head; the embedding has as many."""
        return self.vocab * self.hidden

    # --- whole model -------------------------------------------------------------------------------------------
    @property
    def parameters(self) -> int:
        """All weights of the main model, without MTP modules."""
        experts = (self.experts + self.shared_experts) * self.expert_weights + self.router_weights
        return (
            self.layers * self.attention_weights
            + self.moe_layers * experts
            + self.dense_layers * self.dense_weights
            + 2 * self.head_weights
        )

    @property
    def weight_bytes(self) -> Bytes:
        """The model as it is stored with 8-bit weights: one byte each, as the paper's 671 GB for 671 B weights.

        Source: CloudMatrix384 paper, Table 2.
        """
        return Bytes(self.parameters * INT8_BYTES)

    @property
    def linear_flops_per_token(self) -> Flops:
        """Matrix products of one token through all layers and the head; without core attention."""
        active = (self.active_experts + self.shared_experts) * self.expert_weights
        weights = (
            self.layers * self.attention_weights
            + self.moe_layers * active
            + self.dense_layers * self.dense_weights
            + self.head_weights
        )
        return Flops(2.0 * weights)

    @property
    def decode_core_flops(self) -> Flops:
        """Core attention of one new token and one cached token in one layer, with absorbed weights."""
        return Flops(2.0 * self.heads * (2 * self.kv_rank + self.rope_dim))

    @property
    def prefill_core_flops(self) -> Flops:
        """Core attention of one new token and one attended token in one layer, as plain multi-head attention."""
        return Flops(2.0 * self.heads * (self.nope_dim + self.rope_dim + self.v_dim))

    # --- cache and messages ------------------------------------------------------------------------------------
    @property
    def latent_values(self) -> int:
        """Cached values of one token in one layer."""
        return self.kv_rank + self.rope_dim

    def kv_token_bytes(self, *, int8_latent: bool = False) -> Bytes:
        """Cache of one token in all layers.

        Args:
            int8_latent: the latent as INT8, its rotary part still BF16 (xDeepServe); else all BF16.
        Effects: none.
        """
        latent = self.kv_rank * (INT8_BYTES if int8_latent else BF16_BYTES)
        return Bytes(self.layers * (latent + self.rope_dim * BF16_BYTES))

    @property
    def dispatch_bytes(self) -> int:
        """Message of one token to one expert: INT8 with scale and routing fields, padded."""
        return math.ceil((self.hidden + MESSAGE_EXTRA) / MESSAGE_ALIGNMENT) * MESSAGE_ALIGNMENT

    @property
    def combine_bytes(self) -> int:
        """An expert's answer for one token: BF16."""
        return self.hidden * BF16_BYTES


_FIELDS = {
    "hidden": "hidden_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "kv_rank": "kv_lora_rank",
    "rope_dim": "qk_rope_head_dim",
    "nope_dim": "qk_nope_head_dim",
    "v_dim": "v_head_dim",
    "expert_width": "moe_intermediate_size",
    "dense_width": "intermediate_size",
    "experts": "n_routed_experts",
    "active_experts": "num_experts_per_tok",
    "vocab": "vocab_size",
}
_OPTIONAL = {
    "dense_layers": "first_k_dense_replace",
    "q_rank": "q_lora_rank",
    "shared_experts": "n_shared_experts",
    "mtp_layers": "num_nextn_predict_layers",
}


def shape_from_config(config: Mapping[str, object], name: str) -> ModelShape:
    """Read a shape from the contents of a `config.json`.

    Args:
        config: its top level; unknown keys are ignored, as every checkpoint has many.
        name: what to call the model in messages and reports.
    Raises: SpecError naming the first key that is missing or no whole number.
    Effects: none.
    """
    values = {field: _whole(config, key, name) for field, key in _FIELDS.items()}
    optional = {field: _whole(config, key, name) if config.get(key) else 0 for field, key in _OPTIONAL.items()}
    return ModelShape(name=name, **values, **optional)


def load_shape(path: Path) -> ModelShape:
    """Read a shape from a checkpoint folder or its `config.json`.

    Raises: SpecError if there is no readable config of this architecture.
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
    return shape_from_config(config, file.absolute().parent.name)


def _whole(config: Mapping[str, object], key: str, name: str) -> int:
    value = config.get(key)
    if value is None:
        raise SpecError(f"model {name}: config has no {key}; the cost model knows the DeepSeek-V2/V3 architecture")
    if isinstance(value, bool) or not isinstance(value, int):
        raise SpecError(f"model {name}: {key} is {repr(value)[:40]}, not a whole number")
    if not 0 <= value <= _LARGEST:
        raise SpecError(f"model {name}: {key} is {str(value)[:40]}, which no model has")
    return value


_LARGEST = 2**31 - 1
"""Beyond it times and bytes would be no numbers any more."""

DEEPSEEK_R1 = ModelShape(
    name="deepseek-r1",
    hidden=7168,
    layers=61,
    dense_layers=3,
    heads=128,
    q_rank=1536,
    kv_rank=512,
    rope_dim=64,
    nope_dim=128,
    v_dim=128,
    expert_width=2048,
    dense_width=18432,
    experts=256,
    active_experts=8,
    shared_experts=1,
    vocab=129_280,
    mtp_layers=1,
)
"""DeepSeek-V3 and R1. Source: the checkpoint's config, as quoted by the CloudMatrix384 paper 3.5.1."""
