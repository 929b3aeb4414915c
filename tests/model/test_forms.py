"""Identification of the forms that torch computes with."""

import pytest
import torch
from torch import Tensor

from serving.model import forms
from serving.model.forms import TorchForms
from serving.model.linear import pack
from serving.model.shared_tensor import can_share_packed


@pytest.mark.parametrize("kernels", [{torch.float32, torch.bfloat16}, {torch.float32}, set()], ids=len)
def test_a_processor_is_named_by_what_it_packs(monkeypatch: pytest.MonkeyPatch, kernels: set[torch.dtype]) -> None:
    """Without AVX-512 oneDNN raises at bfloat16; nothing may be packed on such a processor, not even to identify it."""

    def packing(weight: Tensor) -> Tensor:
        if weight.dtype not in kernels:
            raise RuntimeError("this path needs the cpu support avx512bw")
        return pack(weight.float())

    monkeypatch.setattr(forms, "packs", lambda device, dtype: device.type == "cpu" and dtype in kernels)
    monkeypatch.setattr(forms, "pack", packing)
    assert TorchForms(torch.device("cpu")).fingerprint().startswith(f"torch-{torch.__version__}")


def test_processors_that_pack_otherwise_have_other_names(monkeypatch: pytest.MonkeyPatch) -> None:
    if not can_share_packed():
        pytest.skip("packed products cannot lie on shared memory here")
    names = set()
    for kernels in ({torch.float32, torch.bfloat16}, {torch.float32}):
        monkeypatch.setattr(forms, "packs", lambda _, dtype, kernels=kernels: dtype in kernels)
        monkeypatch.setattr(forms, "pack", lambda weight: pack(weight.float()))
        names.add(TorchForms(torch.device("cpu")).fingerprint())
    assert len(names) == 2
