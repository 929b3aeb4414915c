"""Blocks survive the path device -> arena -> another arena -> another device. Two CPU tensors represent two devices."""

import torch

from serving.ids import BlockId
from serving.instance.live.compute_torch import DeviceMirror


def test_only_the_named_blocks_travel() -> None:
    source, target = torch.randn(4, 2, 3), torch.zeros(4, 2, 3)
    arena = memoryview(bytearray(source.nbytes))
    sender = DeviceMirror(source, arena)
    receiver = DeviceMirror(target, arena)
    sender.save([BlockId(1), BlockId(3)])
    assert not target.any(), "saving must not touch the other device"
    receiver.load([BlockId(3), BlockId(1)])
    assert torch.equal(target[[1, 3]], source[[1, 3]])
    assert not target[[0, 2]].any()
