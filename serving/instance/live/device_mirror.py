"""KV blocks of an accelerator, mirrored in the UB segment during a handoff.

On the CPU the KV cache itself is in shared memory, and no mirror is needed. An accelerator's memory cannot be mapped by
other processes, so blocks are saved to the same place of the host arena before they are registered, and loaded from it
after they were pulled.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from serving.ids import BlockId


class DeviceMirror:
    """Copies blocks between a device's KV cache and an arena of shared memory of the same layout.

    Args:
        blocks: `[num_blocks, ...]` on the device, contiguous and in order.
        arena: at least as many bytes, writable, on the host.
    """

    def __init__(self, blocks: Tensor, arena: memoryview) -> None:
        self._device = blocks
        host = torch.frombuffer(arena, dtype=blocks.dtype, count=blocks.numel())
        self._host = host.view(blocks.shape)

    def save(self, blocks: Sequence[BlockId]) -> None:
        """Copy from device to arena; complete on return."""
        index = torch.tensor(blocks, dtype=torch.int64)
        self._host[index] = self._device[index.to(self._device.device)].to("cpu")

    def load(self, blocks: Sequence[BlockId]) -> None:
        """Copy from arena to device; complete on return."""
        index = torch.tensor(blocks, dtype=torch.int64)
        self._device[index.to(self._device.device)] = self._host[index].to(self._device.device)
        if self._device.is_cuda:
            torch.cuda.synchronize(self._device.device)
