"""Contents of a die's HBM, and the tokens of KV cache that fit into the rest."""

from dataclasses import dataclass
from typing import Literal

from hardware.cost.attention import BF16_BYTES, LatentAttentionSizes
from hardware.cost.decode_terms import group_terms
from hardware.cost.device_model import DeviceModel
from hardware.cost.exchange import expert_copies
from hardware.cost.model_shape import ModelShape
from hardware.cost.parallelism import WHOLE, Parallelism, die_attention_weights
from hardware.errors import SpecError
from hardware.units import Bytes

Role = Literal["prefill", "decode", "aggregated"]

DECODE_TOKENS_PER_DIE = 96
"""Largest batch that exchange buffers are sized for. Source: CloudMatrix384 paper 4.2.1: 645 MB of buffers."""
PREFILL_TOKENS_PER_DIE = 8_192
"""Tokens of a prefill step. Source: CloudMatrix384 paper, Table 3: 16,384 per NPU."""


@dataclass(frozen=True, slots=True)
class ExpertDie:
    """Memory of a die that holds experts only. Attributes as of `HbmPlan`; the rest is free."""

    weights: Bytes
    buffers: Bytes
    free: Bytes


@dataclass(frozen=True, slots=True)
class HbmPlan:
    """One die's memory; where experts have dies of their own, an attention die's.

    Attributes:
        weights: in the model's formats; absorbed matrices, gates and indexers in BF16. Attention is replicated, but for
            what prefill splits by heads, and for groups of dies that share their sequences.
        buffers: of dispatch and combine.
        workspace: what engines leave free: activations, fragmentation, the runtime.
        kv: the rest.
        kv_tokens: tokens whose cache fits into `kv`, if the die holds its requests alone, or those of a group of dies
            that share them. Decode dies do; prefill dies of a split sequence all hold the same cache rows, so that an
            instance holds this many as a whole.
        instance_kv_tokens: of the whole instance.
        groups: of dies that hold caches of their own: as many as dies where each die does.
        parts: into which the dies of a group split a token's cache; 1 = each has all of it.
        expert_die: where experts have dies of their own; those hold no cache. None = there are none.
    """

    hbm: Bytes
    weights: Bytes
    buffers: Bytes
    workspace: Bytes
    kv: Bytes
    kv_tokens: int
    instance_kv_tokens: int
    groups: int
    parts: int
    expert_die: ExpertDie | None = None


def hbm_plan(
    device: DeviceModel, shape: ModelShape, role: Role, dies: int, parallelism: Parallelism = WHOLE
) -> HbmPlan:
    """Plan the memory of an instance's dies.

    Args:
        role: `aggregated` plans for both steps: decode's layout, prefill's and decode's buffers.
        dies: of the instance.
        parallelism: of that role.
    Raises: SpecError if the weights do not fit, or leave prefill less memory than one die's part of a step; for groups
        that do not divide the dies; or for an unknown role.
    Source: CloudMatrix384 paper 4.1, 4.2.1; relation E28 (one expert per decode die, ten per prefill die).
    """
    if role not in ("prefill", "decode", "aggregated") or dies < 1:
        raise SpecError(f"no memory plan for role {role!r} on {dies} dies")
    if parallelism.expert_dies and role != "decode":
        raise SpecError(f"expert_dies is of decode: no {role} with experts on dies of their own is priced")
    parallelism.check_dies(device, dies)
    hbm = int(device.die.hbm_bytes)
    layout = parallelism.prefill_layout(device) if role == "prefill" else "data-parallel"
    by_heads = dies if layout == "sp-tp-sp" else 0
    workspace = int(hbm * (1 - device.calibration.hbm_share))
    apart = parallelism.expert_dies
    expert_die = _expert_die(device, shape, dies, parallelism, hbm - workspace) if apart else None
    shared_by = parallelism.expert_tp
    experts = (
        _draft_expert_bytes(device, shape, dies - apart, parallelism)
        if apart
        else _expert_bytes(device, shape, role, dies, parallelism)
    )
    weights = _replicated_bytes(shape, by_heads, parallelism) + experts + _drafter_bytes(shape, parallelism)
    buffers = _buffer_bytes(shape, role, apart or dies) * shared_by
    kv = hbm - weights - buffers - workspace
    parts = shape.attention.cache_parts(parallelism.attention_tp)
    tokens = max(kv, 0) * parts // shape.kv_token_bytes()
    least = 1 if role == "decode" else PREFILL_TOKENS_PER_DIE
    if tokens < least:
        short = f"{weights / 1e9:.1f} GB of weights and {buffers / 1e9:.1f} GB of buffers"
        room = "no room for KV cache" if kv <= 0 else f"room for {tokens:,} tokens of KV cache only"
        raise SpecError(
            f"{shape.name} does not fit on {dies} dies of {device.name}: {short} leave {room}; "
            f"{_way_out(shape, weights, buffers)}"
        )
    groups = parallelism.groups(dies) if layout == "data-parallel" else 1
    return HbmPlan(
        Bytes(hbm),
        Bytes(weights),
        Bytes(buffers),
        Bytes(workspace),
        Bytes(kv),
        tokens,
        tokens * groups,
        groups,
        parts,
        expert_die,
    )


def _way_out(shape: ModelShape, weights: int, buffers: int) -> str:
    if not shape.experts:
        return "give a dense model a larger attention_tp, which splits its weights over dies"
    return f"give the instance {'more' if weights > buffers else 'fewer'} dies, or a larger attention_tp"


def _attention_bytes(shape: ModelShape, by_heads: int, tp: int) -> float:
    """Attention of one layer on one die: its part, absorbed matrices in BF16; of prefill by heads, one die's heads.

    Sparse attention may prefill with absorbed weights.

    Args:
        by_heads: dies that split prefill's heads; 0 = none do.
    """
    each, attention = shape.formats.attention.bytes, shape.attention
    if by_heads and isinstance(attention, LatentAttentionSizes) and attention.indexer is None:
        return (shape.attention_weights - attention.head_weights * (1 - 1 / by_heads)) * each
    return die_attention_weights(shape, tp) * each + shape.absorbed_weights / tp * (BF16_BYTES - each)


def _replicated_bytes(shape: ModelShape, by_heads: int, parallelism: Parallelism) -> int:
    """Weights outside the experts: attention, dense layers, gates, embedding, head; one MTP module more.

    The embedding stays whole on each die, and with it a head that is tied to it.
    """
    each, tp = shape.formats.attention.bytes, parallelism.attention_tp
    layer = _attention_bytes(shape, by_heads, tp)
    ends = shape.embedding_and_head_weights
    if not shape.tied_head:
        ends = round(ends - shape.head_weights * (1 - 1 / parallelism.head_tp))
    layers = shape.layers + shape.mtp_layers
    gates = (shape.moe_layers + shape.mtp_layers) * shape.router_weights * BF16_BYTES
    merging = shape.mtp_layers * 2 * shape.hidden * shape.hidden * each
    choosing = shape.indexer.layers + shape.mtp_layers if shape.indexer else 0
    return round(
        layers * layer
        + choosing * shape.indexer_weights * BF16_BYTES
        + gates
        + merging
        + shape.dense_layers * shape.dense_weights / tp * each
        + ends * each
    )


def _drafter_bytes(shape: ModelShape, parallelism: Parallelism) -> int:
    """Layers and LM head of a separate draft model; the embedding is the target's."""
    if shape.drafter is None:
        return 0
    drafter, tp = shape.drafter, parallelism.attention_tp
    layer = _attention_bytes(drafter, 0, tp) + drafter.dense_weights / tp * drafter.formats.attention.bytes
    merging = 2 * drafter.hidden * drafter.hidden
    rest = (merging + drafter.head_weights / parallelism.head_tp) * drafter.formats.attention.bytes
    return round(drafter.layers * layer + rest)


def _expert_bytes(device: DeviceModel, shape: ModelShape, role: Role, dies: int, parallelism: Parallelism) -> int:
    expert_tp = parallelism.expert_tp
    layers, each = shape.moe_layers + shape.mtp_layers, shape.formats.experts.bytes / expert_tp
    if not layers:
        return 0
    if role == "prefill":
        holders = dies // expert_tp
        routed = -(-round(expert_copies(device.layout, shape, holders, parallelism.redundant_on(holders))) // holders)
        return round(layers * (routed + shape.shared_experts) * shape.expert_weights * each)
    return round(layers * group_terms(device, shape, dies, parallelism).experts * shape.expert_weights * each)


def _draft_expert_bytes(device: DeviceModel, shape: ModelShape, dies: int, parallelism: Parallelism) -> int:
    """Experts of MTP modules, which are not split: spread over the attention dies."""
    if not shape.mtp_layers:
        return 0
    held = group_terms(device, shape, dies, parallelism).experts
    return round(shape.mtp_layers * held * shape.expert_weights * shape.formats.experts.bytes)


def _expert_die(device: DeviceModel, shape: ModelShape, dies: int, parallelism: Parallelism, room: int) -> ExpertDie:
    """A die with its part of all layers' experts except those of MTP modules.

    Its buffers are for all attention dies, of every domain.

    Args:
        room: of a die, without the memory that engines leave free [bytes].
    Raises: SpecError if they do not fit.
    """
    expert_dies = parallelism.expert_dies
    held = group_terms(device, shape, expert_dies, parallelism).experts
    weights = round(shape.moe_layers * held * shape.expert_weights * shape.formats.experts.bytes)
    buffers = _buffer_bytes(shape, "decode", dies - expert_dies)
    if weights + buffers > room:
        raise SpecError(
            f"experts of {shape.name} do not fit on {expert_dies} dies of {device.name}: {held} a layer are "
            f"{weights / 1e9:.1f} GB beside {buffers / 1e9:.1f} GB of buffers, a die has {room / 1e9:.1f} GB; raise "
            "expert_dies"
        )
    return ExpertDie(Bytes(weights), Bytes(buffers), Bytes(room - weights - buffers))


def _buffer_bytes(shape: ModelShape, role: Role, dies: int) -> int:
    """Dispatch and combine buffers: decode's by the paper's equations 1 and 2 with one expert per die."""
    if not shape.experts:
        return 0
    message = shape.dispatch_bytes + shape.combine_bytes
    decode = dies * DECODE_TOKENS_PER_DIE * message
    prefill = PREFILL_TOKENS_PER_DIE * shape.active_experts * message
    return {"decode": decode, "prefill": prefill, "aggregated": decode + prefill}[role]
