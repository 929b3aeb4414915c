"""interface.h in Python, field by field: the structs that the native library reads and writes.

A test compares the sizes with those of the compiled library.
"""

import ctypes
from collections.abc import Sequence
from enum import IntEnum
from typing import ClassVar, TypeVar

import numpy as np

INTERFACE = 22
"""CM_INTERFACE of the header that this file mirrors."""

Struct = TypeVar("Struct", bound=ctypes.Structure)

_Int = ctypes.c_int32
_Real = ctypes.c_float
_Address = ctypes.c_void_p


class Form(IntEnum):
    """Storage form of numbers."""

    F32 = 0
    BF16 = 1
    INT8 = 2
    W8A16 = 3
    BF16_SHORT = 4


W8A16_INPUTS = 512
"""kMostW8A16Inputs of pack.h."""

SHORT_INPUTS = 8192
"""kMostShortInputs of short_bf16.h."""


class AttentionKind(IntEnum):
    """Kind of a layer's attention, by the data that it keeps per token."""

    LATENT = 0
    GROUPED = 1


class Draw(IntEnum):
    """Kind of sampling requested for a sequence's last row."""

    NONE = 0
    TOKEN = 1
    LOGITS = 2


class NativeFailure(IntEnum):
    """Error code of a library function."""

    BAD_ARGUMENT = 1
    NO_MEMORY = 2
    NOT_FINITE = 3
    NO_SHORT_FORM = 4
    GROUP = 5


class NativeLinear(ctypes.Structure):
    """cm_linear."""

    _fields_: ClassVar[list[tuple[str, type]]] = [
        *((name, _Int) for name in ("out_features", "in_features", "groups", "form")),
        ("packed", _Address),
        ("bias", _Address),
    ]


class NativeBlock(ctypes.Structure):
    """cm_block."""

    _fields_: ClassVar[list[tuple[str, type]]] = [
        *((name, _Int) for name in ("kind", "rotates", "window")),
        ("attention_norm", _Address),
        ("into", NativeLinear),
        ("query_norm", _Address),
        ("key_norm", _Address),
        ("sinks", _Address),
        ("query_up", NativeLinear),
        ("latent_norm", _Address),
        ("expand", NativeLinear),
        ("key_absorb", NativeLinear),
        ("value_absorb", NativeLinear),
        ("out", NativeLinear),
        ("feed_norm", _Address),
        ("gate_up", NativeLinear),
        ("down", NativeLinear),
        ("gate", NativeLinear),
        ("gate_bias", _Address),
        ("expert_gate_up", ctypes.POINTER(NativeLinear)),
        ("expert_down", ctypes.POINTER(NativeLinear)),
    ]


class NativeDraftLayer(ctypes.Structure):
    """cm_draft_layer."""

    _fields_: ClassVar[list[tuple[str, type]]] = [
        ("embed", _Address),
        ("token_norm", _Address),
        ("hidden_norm", _Address),
        ("fuse", NativeLinear),
        ("block", NativeBlock),
        ("norm", _Address),
        ("head", NativeLinear),
    ]


_MODEL_SIZES = (
    *("form", "vocab", "hidden", "layers", "heads", "q_lora", "kv_lora", "nope_dim", "rope_dim", "value_dim"),
    *("kv_heads", "head_dim"),
    *("experts", "top_k", "expert_groups", "kept_groups", "sigmoid_scores", "normalise_weights", "bf16_results"),
)


class NativeModel(ctypes.Structure):
    """cm_model."""

    _fields_: ClassVar[list[tuple[str, type]]] = [
        *((name, _Int) for name in _MODEL_SIZES),
        *((name, _Real) for name in ("routed_scaling", "gate_alpha", "gate_limit")),
        *((name, _Real) for name in ("norm_eps", "latent_norm_eps", "softmax_scale")),
        ("rope_frequencies", _Address),
        ("rope_amplitude", _Real),
        ("embed", _Address),
        ("blocks", ctypes.POINTER(NativeBlock)),
        ("norm", _Address),
        ("head", NativeLinear),
        ("draft", ctypes.POINTER(NativeDraftLayer)),
    ]


class Cache(ctypes.Structure):
    """cm_cache."""

    _fields_: ClassVar[list[tuple[str, type]]] = [
        ("base", _Address),
        *((name, _Int) for name in ("form", "blocks", "layers", "block_tokens")),
        *((name, _Int) for name in ("row_bytes", "head_bytes", "rope_offset", "scale_offset", "width")),
        ("places", _Address),
    ]


class Batch(ctypes.Structure):
    """cm_batch."""

    _fields_: ClassVar[list[tuple[str, type]]] = [
        ("sequences", _Int),
        ("rows", _Int),
        ("sequence", _Address),
        ("ids", _Address),
        ("tables", _Address),
        ("settled", _Int),
        ("matchers", _Int),
        ("matcher", _Address),
    ]


class NativeOutput(ctypes.Structure):
    """cm_answer."""

    _fields_: ClassVar[list[tuple[str, type]]] = [
        ("max_tokens", _Int),
        *((name, _Address) for name in ("token_counts", "tokens", "draft_counts", "drafts", "logits", "hidden")),
    ]


_SEQUENCE_INTS = (
    *("first_row", "rows", "start", "table", "table_size", "drafts", "draw", "next_drafts", "next_token"),
    *("keep_hidden", "alone", "top_k", "matcher", "next_forced"),
)

SEQUENCE = np.dtype(
    [
        *((name, np.int32) for name in _SEQUENCE_INTS),
        *((name, np.float64) for name in ("temperature", "top_p", "min_p")),
        ("seed", np.uint64),
        ("position", np.int64),
    ],
    align=True,
)
"""cm_sequence, for arrays of them."""


class NativeMatcher(ctypes.Structure):
    """cm_matcher."""

    _fields_: ClassVar[list[tuple[str, type]]] = [
        *((name, _Address) for name in ("matcher", "stops")),
        *((name, _Int) for name in ("stop_count", "told")),
    ]


class GrammarFunctions(ctypes.Structure):
    """cm_grammar_functions."""

    _fields_: ClassVar[list[tuple[str, type]]] = [
        (name, _Address) for name in ("compute_mask", "consume", "rollback", "forced", "validate")
    ]


MAP_POSITIONS = 16
"""CM_MAP_POSITIONS: rows of an expert map's rotation table."""

MAP_MASKED = 0xFFFFFFFF
"""CM_MAP_MASKED: no rank holds the expert."""


class NativeRole(IntEnum):
    """Work of a rank in its group, as the library names it."""

    ATTENTION = 1
    EXPERTS = 2
    BOTH = 3


class NativeExpertSizes(ctypes.Structure):
    """cm_expert_sizes."""

    _fields_: ClassVar[list[tuple[str, type]]] = [
        *(
            (name, _Int)
            for name in ("form", "hidden", "width", "shared_width", "layers", "experts", "top_k", "bf16_results")
        ),
        *((name, _Real) for name in ("gate_alpha", "gate_limit")),
    ]


class NativeWindowShape(ctypes.Structure):
    """cm_window_shape."""

    _fields_: ClassVar[list[tuple[str, type]]] = [
        (name, _Int) for name in ("ranks", "max_rows", "top_k", "row_bytes", "result_bytes")
    ]


class NativeGroupPlace(ctypes.Structure):
    """cm_group_place."""

    _fields_: ClassVar[list[tuple[str, type]]] = [
        *((name, _Int) for name in ("rank", "ranks", "cores", "layers", "slots")),
        ("windows", ctypes.POINTER(_Address)),
        ("processes", ctypes.POINTER(_Int)),
        ("gate_up", ctypes.POINTER(NativeLinear)),
        ("down", ctypes.POINTER(NativeLinear)),
        ("shared", _Int),
        ("shared_gate_up", ctypes.POINTER(NativeLinear)),
        ("shared_down", ctypes.POINTER(NativeLinear)),
        ("deadline_ns", ctypes.c_int64),
        ("gather_ns", ctypes.c_int64),
        ("map_version", ctypes.c_uint64),
        ("map", _Address),
    ]


SIZES = {
    "cm_linear": ctypes.sizeof(NativeLinear),
    "cm_block": ctypes.sizeof(NativeBlock),
    "cm_draft_layer": ctypes.sizeof(NativeDraftLayer),
    "cm_model": ctypes.sizeof(NativeModel),
    "cm_cache": ctypes.sizeof(Cache),
    "cm_sequence": SEQUENCE.itemsize,
    "cm_batch": ctypes.sizeof(Batch),
    "cm_matcher": ctypes.sizeof(NativeMatcher),
    "cm_grammar_functions": ctypes.sizeof(GrammarFunctions),
    "cm_answer": ctypes.sizeof(NativeOutput),
    "cm_window_shape": ctypes.sizeof(NativeWindowShape),
    "cm_group_place": ctypes.sizeof(NativeGroupPlace),
    "cm_expert_sizes": ctypes.sizeof(NativeExpertSizes),
}
"""Bytes of every struct, for comparison with the library's."""


def array_of(kind: type[Struct], items: Sequence[Struct], kept: list[object]) -> "ctypes._Pointer[Struct] | None":
    """A C array of structs.

    Returns: its address; None if there are no items.
    Effects: appends the array to `kept`, which must exist as long as the address is used.
    """
    if not items:
        return None
    array = (kind * len(items))(*items)
    kept.append(array)
    return ctypes.cast(array, ctypes.POINTER(kind))
