"""Sizes of a language model that decide how many operations and bytes a step takes.

Attention is a value of its own; a layer's feed-forward is dense or has routed and shared experts. Counts are of matrix
weights; norms and biases are too small to matter. `model_config` reads a shape from a checkpoint's `config.json`.
"""

import math
from dataclasses import dataclass, fields, replace

from hardware.cost.attention import BF16_BYTES, AttentionSizes, IndexerSizes, LatentAttentionSizes
from hardware.cost.device_model import DeviceModel
from hardware.cost.weight_format import AS_PUBLISHED, ModelFormats
from hardware.errors import SpecError
from hardware.units import Bytes, Flops

MESSAGE_ALIGNMENT = 512
"""Bytes that a dispatched token's message is padded to. Source: CloudMatrix384 paper 4.2.1."""
MESSAGE_EXTRA = 44
"""Scale and routing fields after a dispatched token: 32 + 12 bytes. Source: public CANN kernels' window layout."""
_MAY_BE_ZERO = {
    "q_rank", "dense_layers", "dense_width", "expert_width", "experts", "active_experts", "shared_experts",
    "mtp_layers", "tied_head", "windowed_layers",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Sizes of one model. All counts are plain numbers; one multiply-accumulate is two operations.

    Attributes:
        dense_layers: those with an ordinary feed-forward of width `dense_width`; the others have experts.
        experts: routed experts of a layer; 0 in a dense model, whose layers are all dense ones.
        active_experts: routed experts that each token visits.
        mtp_layers: multi-token-prediction modules that the checkpoint has.
        tied_head: the embedding is the LM head too, and stored once.
        formats: of weights and KV cache, as the model is served.
        drafter: separate model that drafts tokens, as in EAGLE-3; None = the model's own MTP modules do, if it has any.
    """

    name: str
    hidden: int
    layers: int
    attention: AttentionSizes
    dense_layers: int
    dense_width: int
    expert_width: int
    experts: int
    active_experts: int
    shared_experts: int
    vocab: int
    mtp_layers: int
    tied_head: bool = False
    formats: ModelFormats = AS_PUBLISHED
    drafter: "ModelShape | None" = None

    def __post_init__(self) -> None:
        owners: list[ModelShape | AttentionSizes | IndexerSizes] = [self, self.attention]
        for owner in [*owners, self.indexer] if self.indexer else owners:
            for field in fields(owner):
                value = getattr(owner, field.name)
                if isinstance(value, int) and value < (0 if field.name in _MAY_BE_ZERO else 1):
                    raise self._impossible(f"{field.name} is {value}")
        if self.dense_layers > self.layers or self.active_experts > self.experts:
            raise self._impossible("more dense layers than layers, or more active experts than experts")
        if self.experts and not (self.active_experts and self.expert_width):
            raise self._impossible("experts that no token visits, or without width")
        if not self.experts and (self.dense_layers < self.layers or self.shared_experts or self.mtp_layers):
            raise self._impossible("no routed experts, but layers, shared experts or MTP modules beside them")
        if self.dense_layers and not self.dense_width:
            raise self._impossible("dense layers without width")
        kv_heads = getattr(self.attention, "kv_heads", 1)
        if self.attention.heads % kv_heads:
            raise self._impossible(f"{self.attention.heads} heads in {kv_heads} groups")
        limited = self.indexer.layers if self.indexer else getattr(self.attention, "windowed_layers", 0)
        if limited > self.layers:
            raise self._impossible(f"an indexer or a window in {limited} of {self.layers} layers")

    def _impossible(self, what: str) -> SpecError:
        return SpecError(f"model {self.name}: {what}, which no model can have")

    # --- what can be priced ------------------------------------------------------------------------------------
    def check_drafts(self, drafts: int) -> None:
        """Refuse drafts for a model without draft layers.

        Raises: SpecError.
        """
        if drafts and not self.mtp_layers and self.drafter is None:
            raise SpecError(
                f"model {self.name}: has no MTP module to draft {drafts} tokens with; set drafts to 0, or name a draft "
                "model"
            )

    # --- weights of one layer ----------------------------------------------------------------------------------
    @property
    def moe_layers(self) -> int:
        """Layers with routed experts; 0 in a dense model."""
        return self.layers - self.dense_layers

    @property
    def prolog_weights(self) -> int:
        """Projections before core attention, without the absorbed matrices of latent attention."""
        return self.attention.prolog_weights(self.hidden)

    @property
    def absorbed_weights(self) -> int:
        """Matrices that decode folds into queries and outputs, in BF16; none in grouped attention."""
        return self.attention.key_up_weights + self.attention.value_up_weights

    @property
    def output_weights(self) -> int:
        """Output projection of attention."""
        return self.attention.result_values * self.hidden

    @property
    def indexer(self) -> IndexerSizes | None:
        """Chooser of the tokens that are read; None = attention is not sparse."""
        return self.attention.indexer if isinstance(self.attention, LatentAttentionSizes) else None

    @property
    def indexer_weights(self) -> int:
        """Indexer of one layer that has one, in BF16."""
        if not isinstance(self.attention, LatentAttentionSizes) or self.attention.indexer is None:
            return 0
        return self.attention.indexer.weights(self.hidden, self.attention.q_rank)

    @property
    def attention_weights(self) -> int:
        """All of one layer's attention, without its indexer."""
        return self.prolog_weights + self.absorbed_weights + self.output_weights

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

    @property
    def embedding_and_head_weights(self) -> int:
        """Both, which are one matrix where they are tied."""
        return self.head_weights if self.tied_head else 2 * self.head_weights

    # --- whole model -------------------------------------------------------------------------------------------
    @property
    def parameters(self) -> int:
        """All weights of the main model, without MTP modules."""
        return (
            self.layers * self.attention_weights
            + self._indexers
            + self.moe_layers * self.router_weights
            + self._all_experts
            + self.dense_layers * self.dense_weights
            + self.embedding_and_head_weights
        )

    @property
    def weight_bytes(self) -> Bytes:
        """The model as it is stored: with 8-bit weights one byte each, as the paper's 671 GB for 671 B weights.

        Source: CloudMatrix384 paper, Table 2.
        """
        experts, formats = self._all_experts, self.formats
        rest = self.parameters - experts
        return Bytes(round(rest * formats.attention.bytes + experts * formats.experts.bytes))

    @property
    def linear_flops_per_token(self) -> Flops:
        """Matrix products of one token through all layers and the head; without core attention."""
        active = (self.active_experts + self.shared_experts) * self.expert_weights
        weights = (
            self.layers * self.attention_weights
            + self._indexers
            + self.moe_layers * active
            + self.dense_layers * self.dense_weights
            + self.head_weights
        )
        return Flops(2.0 * weights)

    @property
    def attention_tokens(self) -> float:
        """Context length at which the growing costs of a prompt's token equal all its other costs.

        In a long context only an indexer's scores grow, or layers without a window. Infinite without such
        growth.
        """
        if self.indexer:
            growing = self.indexer.layers * self.indexer.score_flops
        else:
            whole = self.layers - getattr(self.attention, "windowed_layers", 0)
            growing = whole * self.attention.prefill_core_flops
        return self.linear_flops_per_token / growing if growing else math.inf

    @property
    def _all_experts(self) -> int:
        return self.moe_layers * (self.experts + self.shared_experts) * self.expert_weights

    @property
    def _indexers(self) -> int:
        return self.indexer.layers * self.indexer_weights if self.indexer else 0

    # --- cache and messages ------------------------------------------------------------------------------------
    def kv_token_bytes(self, *, int8: bool | None = None) -> Bytes:
        """Cache of one token in all layers and in a drafter's, BF16 or INT8: see `token_bytes` of the attention.

        Args:
            int8: None = from the model's formats.
        """
        own = self.layers * self.attention.token_bytes(int8=self.formats.one_byte_kv if int8 is None else int8)
        return Bytes(own + (0 if self.drafter is None else self.drafter.kv_token_bytes()))

    @property
    def dispatch_bytes(self) -> int:
        """Message of one token to one expert: INT8 with scale and routing fields, padded."""
        return math.ceil((self.hidden + MESSAGE_EXTRA) / MESSAGE_ALIGNMENT) * MESSAGE_ALIGNMENT

    @property
    def combine_bytes(self) -> int:
        """An expert's result for one token: BF16."""
        return self.hidden * BF16_BYTES


DEEPSEEK_R1 = ModelShape(
    name="deepseek-r1",
    hidden=7168,
    layers=61,
    attention=LatentAttentionSizes(heads=128, q_rank=1536, kv_rank=512, rope_dim=64, nope_dim=128, v_dim=128),
    dense_layers=3,
    dense_width=18432,
    expert_width=2048,
    experts=256,
    active_experts=8,
    shared_experts=1,
    vocab=129_280,
    mtp_layers=1,
)
"""DeepSeek-V3 and R1. Source: the checkpoint's config, as quoted by the CloudMatrix384 paper 3.5.1."""


# A model as one device serves it: its shape, with the formats that the device can multiply.


def served_shape(shape: ModelShape, device: DeviceModel, *, asked: bool) -> ModelShape:
    """The model on a device.

    An FP8 checkpoint becomes W8A8 on a device without FP8 products, unless FP8 was requested explicitly.

    Args:
        asked: a person named the weights' format.
    Raises: SpecError naming what cannot be priced.
    """
    if not asked and not device.die.fp8_flops_per_s:
        shape = replace(shape, formats=shape.formats.on_device_without_fp8())
    check_formats(shape, device)
    return shape


def check_formats(shape: ModelShape, device: DeviceModel) -> None:
    """Refuse formats that cannot be priced on a device.

    Raises: SpecError naming them.
    """
    if shape.formats.kv == "fp8":
        device.die.products_per_s("fp8", device.name)
    for one in (shape.formats.attention, shape.formats.experts):
        device.die.products_per_s(one.products, device.name)
