"""Models of grouped attention that an engine refuses, each with a reason; and whole ones that it accepts."""

import ctypes
from collections.abc import Callable

import pytest

from serving.errors import ModelError
from serving.model.native.layout import (
    AttentionKind,
    Cache,
    Form,
    NativeBlock,
    NativeDraftLayer,
    NativeLinear,
    NativeModel,
)
from serving.model.native.library import Library
from tests.model.native.native_libraries import own_library

HIDDEN, HEADS, KV_HEADS, HEAD = 48, 6, 2, 16


class Parts:
    """A model of two layers and a draft layer whose weights are never computed with, and its cache."""

    def __init__(self) -> None:
        self.memory = ctypes.create_string_buffer(64)
        self.blocks = (NativeBlock * 2)(self.block(), self.block())
        self.draft = (NativeDraftLayer * 1)(self.draft_layer())
        self.model = NativeModel(
            form=Form.F32, vocab=90, hidden=HIDDEN, layers=2, heads=HEADS, nope_dim=4, rope_dim=12, value_dim=HEAD,
            kv_heads=KV_HEADS, head_dim=HEAD, rope_frequencies=self.address, embed=self.address, norm=self.address,
            blocks=self.blocks, head=self.linear(90, HIDDEN), draft=self.draft,
        )  # fmt: skip
        self.cache = Cache(
            base=self.address, form=Form.F32, blocks=4, layers=3, block_tokens=4, row_bytes=KV_HEADS * 128,
            head_bytes=128, rope_offset=64, scale_offset=-1,
        )  # fmt: skip

    @property
    def address(self) -> int:
        return ctypes.addressof(self.memory)

    def linear(self, outputs: int, inputs: int) -> NativeLinear:
        return NativeLinear(outputs, inputs, 1, Form.F32, self.address)

    def block(self) -> NativeBlock:
        return NativeBlock(
            kind=AttentionKind.GROUPED, rotates=1, attention_norm=self.address, feed_norm=self.address,
            into=self.linear((HEADS + 2 * KV_HEADS) * HEAD, HIDDEN), out=self.linear(HIDDEN, HEADS * HEAD),
            gate_up=self.linear(20, HIDDEN), down=self.linear(HIDDEN, 10),
        )  # fmt: skip

    def draft_layer(self) -> NativeDraftLayer:
        return NativeDraftLayer(
            embed=self.address, token_norm=self.address, hidden_norm=self.address, norm=self.address,
            fuse=self.linear(HIDDEN, 2 * HIDDEN), head=self.linear(90, HIDDEN), block=self.block(),
        )  # fmt: skip

    def use_int8(self) -> None:
        """A cache of bytes: 16 of a value, 16 of a key and two scales."""
        self.cache.form, self.cache.head_bytes, self.cache.row_bytes = Form.INT8, 40, KV_HEADS * 40
        self.cache.rope_offset, self.cache.scale_offset = 16, 32


def make_engine(library: Library, parts: Parts) -> None:
    engine, model, cache = ctypes.c_void_p(), ctypes.byref(parts.model), ctypes.byref(parts.cache)
    library.check(library.functions.cm_engine_new(model, cache, 1, 8, 16, ctypes.byref(engine)))
    library.functions.cm_engine_free(engine)


@pytest.fixture
def library() -> Library:
    return own_library()


@pytest.mark.parametrize("int8", [False, True])
def test_a_whole_model_is_taken(library: Library, int8: bool) -> None:
    parts = Parts()
    if int8:
        parts.use_int8()
    make_engine(library, parts)


MISTAKES: dict[str, tuple[Callable[[Parts], object], str]] = {
    "kv heads": (lambda p: setattr(p.model, "kv_heads", 4), "6 heads cannot share 4 KV heads evenly"),
    "no kv heads": (lambda p: setattr(p.model, "kv_heads", 0), "6 heads cannot share 0 KV heads evenly"),
    "head": (lambda p: setattr(p.model, "head_dim", 18), "heads of 18: 4 that do not turn and 12 that do"),
    "value": (lambda p: setattr(p.model, "value_dim", 8), "values of 8"),
    "latent": (lambda p: setattr(p.model, "kv_lora", 8), "heads of 16"),
    "into": (lambda p: setattr(p.blocks[1].into, "out_features", 96), "into is 96 x 48 in 1 groups, not 160 x 48 in 1"),
    "out": (lambda p: setattr(p.blocks[0].out, "in_features", 48), "out is 48 x 48 in 1 groups, not 48 x 96 in 1"),
    "norm": (lambda p: setattr(p.blocks[1], "feed_norm", None), "a norm's weights are missing"),
    "two kinds": (
        lambda p: setattr(p.blocks[1], "kind", AttentionKind.LATENT),
        "attention of kind 0 beside that of kind 1",
    ),
    "draft of another kind": (
        lambda p: setattr(p.draft[0].block, "kind", AttentionKind.LATENT),
        "attention of kind 0 beside that of kind 1",
    ),
    "unknown kind": (lambda p: setattr(p.blocks[0], "kind", 2), "attention of kind 2 with 2 KV heads of 16"),
    "row": (lambda p: setattr(p.cache, "row_bytes", 252), "the KV cache does not fit the model"),
    "key in the value": (lambda p: setattr(p.cache, "rope_offset", 60), "the KV cache does not fit the model"),
    "head's bytes": (lambda p: setattr(p.cache, "head_bytes", 124), "the KV cache does not fit the model"),
    "window": (lambda p: setattr(p.blocks[1], "window", -1), "a window of -1 tokens"),
    "no frequencies": (lambda p: setattr(p.model, "rope_frequencies", None), "a part of the model is missing"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_model_that_cannot_be(library: Library, name: str) -> None:
    parts = Parts()
    spoil, words = MISTAKES[name]
    spoil(parts)
    with pytest.raises(ModelError, match=words):
        make_engine(library, parts)


@pytest.mark.parametrize("width", [0, 2, 8, 9])
@pytest.mark.parametrize("places", [(0, 0, 1, 0), (0, 0, 2, 0), (0, 0, -1, 0), (0, 0, 1, 3), (0, 0, 1, -1)])
def test_layers_have_places_in_the_cache(library: Library, width: int, places: tuple[int, ...]) -> None:
    parts = Parts()
    parts.model.draft = None
    array = (ctypes.c_int32 * 4)(*places)
    parts.cache.width, parts.cache.places = width, ctypes.addressof(array)
    if (places == (0, 0, 1, 0) and 2 <= width <= 8) or (places[2] == 2 and width == 8):
        make_engine(library, parts)
    else:
        with pytest.raises(ModelError, match="the KV cache does not fit the model"):
            make_engine(library, parts)


@pytest.mark.parametrize(("field", "value"), [("scale_offset", 36), ("scale_offset", 30), ("head_bytes", 36)])
def test_bytes_without_room_for_their_scales(library: Library, field: str, value: int) -> None:
    parts = Parts()
    parts.use_int8()
    setattr(parts.cache, field, value)
    with pytest.raises(ModelError, match="the KV cache does not fit the model"):
        make_engine(library, parts)
