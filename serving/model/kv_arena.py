"""The KV cache of a native step: blocks in shared memory, described for the library. Imports no torch."""

import numpy as np

from serving.errors import ModelError
from serving.model.architecture import Architecture
from serving.model.image import address_of
from serving.model.kv_shape import KvDtype, SplitLayers, layout_fingerprint, row_layout
from serving.model.native import layout

_FORMS = {"float32": layout.Form.F32, "bfloat16": layout.Form.BF16, "int8": layout.Form.INT8}


class KvArena:
    """The KV cache that `KvCache` is, without tensors.

    Args:
        dtype: the model's, `float32` or `bfloat16`.
        buffer, num_layers, kv_dtype, split: as for `KvCache`.
    Attributes:
        struct: valid while this object exists.
    Raises: ModelError if the buffer is read-only or too small.
    """

    def __init__(
        self,
        config: Architecture,
        num_blocks: int,
        block_tokens: int,
        dtype: str,
        buffer: memoryview,
        *,
        num_layers: int,
        kv_dtype: KvDtype = "auto",
        split: SplitLayers | None = None,
    ) -> None:
        row = row_layout(config.row, dtype, kv_dtype)
        layers = num_layers if split is None else split.layers
        size = num_blocks * layers * block_tokens * row.row_bytes
        if buffer.readonly or buffer.nbytes < size:
            raise ModelError(f"the KV arena needs {size} writable bytes, the buffer has {buffer.nbytes}")
        self.num_blocks, self.block_tokens, self.dtype, self.split = num_blocks, block_tokens, dtype, split
        self.layout_fingerprint = layout_fingerprint(config, layers, block_tokens, dtype, row.form, split)
        self._places = None if split is None else np.array(split.places, np.int32)
        self._buffer = buffer
        self.struct = layout.Cache(
            base=address_of(buffer),
            form=_FORMS[row.form],
            blocks=num_blocks,
            layers=layers,
            block_tokens=block_tokens,
            row_bytes=row.row_bytes,
            head_bytes=row.head_bytes,
            rope_offset=row.rope_offset_bytes,
            scale_offset=row.scale_offset_bytes,
            width=1 if split is None else split.split.width,
            places=None if self._places is None else self._places.ctypes.data,
        )
