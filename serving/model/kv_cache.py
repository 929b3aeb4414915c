"""The paged KV cache: one block-major tensor, so that a block is one contiguous run of bytes.

    [num_blocks, layers, block_tokens, a token's row]

Layers are all of the model's, or some of them if the others are in separate blocks (`split_layers`).

A token's data in each layer is the architecture's `row`; `kv_layout` defines its bytes. Block-major order costs
attention nothing (blocks are gathered anyway) and makes a handoff one copy per block. This module does not track which
sequence owns a block.
"""

import torch
from torch import Tensor

from serving.errors import ModelError
from serving.model.architecture import Architecture
from serving.model.batch import ForwardBatch
from serving.model.kv_layout import KvLayout
from serving.model.kv_shape import KvDtype, SplitLayers, layout_fingerprint

# The paged KV cache: one block-major tensor, so that a block is one contiguous run of bytes.


class KvCache:
    """The KV arena of one instance.

    Args:
        block_tokens: tokens per block.
        dtype: the model's; `write` takes and `gather` returns it for any stored form.
        buffer: writable memory to use (shared memory of the node); None = own memory. Must have `size_bytes`, all zero,
            since padding reads blocks that were never written and must not contain a NaN.
        num_layers: layers to keep; default the model's. A draft layer with its own cache adds one.
        split: location of layers if a block has only some of them; `num_layers` is then ignored.
        kv_dtype: `int8` stores the larger part of a row in bytes, `auto` in `dtype`.
    Raises: ModelError if the buffer is read-only, too small or not on the CPU.

    `layout` describes the bytes of a row, for readers of raw memory.
    """

    def __init__(
        self,
        config: Architecture,
        num_blocks: int,
        block_tokens: int,
        dtype: torch.dtype,
        device: torch.device | str = "cpu",
        buffer: memoryview | None = None,
        *,
        num_layers: int | None = None,
        kv_dtype: KvDtype = "auto",
        split: SplitLayers | None = None,
    ) -> None:
        self.num_blocks = num_blocks
        self.block_tokens = block_tokens
        self.num_layers = len(config.layers) if num_layers is None else num_layers
        self.split = split
        if split is not None:
            self.num_layers = split.layers
            self.places = torch.tensor(split.places, dtype=torch.int32)
            """`[layers of the model, 2]`, see `SplitLayers.places`."""
        self.row_elements = config.row.elements
        self.dtype = dtype
        self.layout = layout = KvLayout.of(config.row, dtype, kv_dtype)
        self.form = layout.form
        self.row_bytes = layout.row_bytes
        self.layout_fingerprint = layout_fingerprint(
            config, self.num_layers, block_tokens, str(dtype).removeprefix("torch."), layout.form, split
        )
        shape = (num_blocks, self.num_layers, block_tokens, layout.stored_elements)
        if buffer is None:
            self.tensor = torch.zeros(shape, dtype=layout.stored_dtype, device=device)
        else:
            self.tensor = _on_buffer(buffer, self.size_bytes, layout.stored_dtype, torch.device(device)).view(shape)
        self.device = self.tensor.device  # with its index: `cuda` becomes `cuda:0`
        self._rows = self.tensor.view(-1, layout.stored_elements)
        self._runs = self.tensor.view(num_blocks * self.num_layers, -1)

    @property
    def block_bytes(self) -> int:
        """Bytes of one block with all its layers."""
        return self.num_layers * self.block_tokens * self.row_bytes

    @property
    def size_bytes(self) -> int:
        """Bytes of the arena."""
        return self.num_blocks * self.block_bytes

    def used_bytes(self, tokens_in_block: int) -> int:
        """Bytes to move for a block with this many tokens: the whole block, since each layer has a separate part."""
        return self.block_bytes if tokens_in_block > 0 else 0

    def place(self, layer: int, batch: ForwardBatch) -> tuple[int, ForwardBatch]:
        """A layer's number in the blocks that contain it, and the batch with their tables."""
        if self.split is None:
            return layer, batch
        block, within = self.split.places[layer]
        return within, batch.others[block - 1] if block else batch

    def write(self, layer: int, slots: Tensor, rows: Tensor) -> None:
        """Store the fed tokens' rows of one layer.

        Args:
            slots: `[tokens] int64`, the layer-0 row of each token, as in `ForwardBatch`.
            rows: `[tokens, row_elements]`, in `dtype`.
        Effects: writes the arena; the int8 form also rounds `rows` to the values that `gather` will return.
        """
        self._rows.index_copy_(0, slots + layer * self.block_tokens, self.layout.pack(rows))

    def gather(self, layer: int, runs: Tensor) -> Tensor:
        """Copy blocks of one layer into one tensor.

        Args:
            runs: `[blocks] int64`, block id times layers.
        Returns: `[blocks * block_tokens, row_elements]`, in `dtype`.
        """
        return self.layout.unpack(self._runs.index_select(0, runs + layer).view(-1, self.layout.stored_elements))

    def gather_chosen(self, layer: int, slots: Tensor) -> Tensor:
        """Copy single rows of one layer into one tensor.

        Args:
            slots: `[tokens] int64`, as for `write`.
        Returns: `[tokens, row_elements]`, in `dtype`.
        """
        return self.layout.unpack(self._rows.index_select(0, slots + layer * self.block_tokens))

    def gather_index_keys(self, layer: int, runs: Tensor) -> Tensor:
        """Gather only the indexer's keys of one layer's blocks.

        Args:
            runs: as for `gather`.
        Returns: `[blocks * block_tokens, index]`, in `dtype`.
        """
        blocks = self._runs.view(-1, self.block_tokens, self.layout.stored_elements)
        return blocks[..., self.layout.index_part].index_select(0, runs + layer).view(self.dtype).flatten(0, 1)


def _on_buffer(buffer: memoryview, size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    if device.type != "cpu":
        raise ModelError(f"a KV arena in shared memory needs device cpu, not {device}")
    if buffer.readonly or buffer.nbytes < size:
        raise ModelError(f"the KV arena needs {size} writable bytes, the buffer has {buffer.nbytes}: lower num_blocks")
    return torch.frombuffer(buffer, dtype=dtype, count=size // dtype.itemsize)
