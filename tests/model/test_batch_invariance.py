"""A sequence's logits have the same bits alone and in a batch: the basis of token-exactness across routes.

Holds on CPUs for the packed products and for widths in multiples of 16, as trained models have; the ragged widths of
the other tests' models may occasionally differ in the last place.
"""

from pathlib import Path
from typing import Any

import pytest
import torch

from serving.model.loader import load_model
from tests.model.paged import PagedRunner
from tests.model.random_checkpoint import Dtype, write_random_checkpoint
from tests.model.shapes import CHOOSING, WIDTHS

SPARSE_WIDTHS = WIDTHS | CHOOSING | {"index_topk": 64, "index_n_heads": 16, "index_head_dim": 32}


@pytest.mark.parametrize("shape", [WIDTHS, SPARSE_WIDTHS], ids=["dense", "sparse"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_rows_do_not_notice_their_neighbours(tmp_path: Path, dtype: Dtype, shape: dict[str, Any]) -> None:
    model = load_model(write_random_checkpoint(tmp_path, dtype=dtype, **shape))
    together = PagedRunner(model, num_blocks=256, block_tokens=16)
    alone = PagedRunner(model, num_blocks=256, block_tokens=16, seed=1)
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(3, 230, (20,), generator=generator).tolist()
    prompts = [torch.randint(6, 320, (n,), generator=generator).tolist() for n in lengths]
    names = [str(n) for n in range(20)]
    for name, prompt in zip(names, prompts, strict=True):
        together.step([(name, prompt)])
        alone.step([(name, prompt)])
    for step in range(2):
        fed = [(name, [6 + (7 * i + 31 * step) % 300]) for i, name in enumerate(names)]
        batch = together.step(fed)
        for piece, logits in zip(fed, batch, strict=True):
            assert torch.equal(alone.step([piece])[0], logits)
    chunks = {"a": 100, "b": 7, "c": 33}
    prompts = [list(range(10, 10 + length)) for length in chunks.values()]
    batch = PagedRunner(model, block_tokens=16).step(list(zip(chunks, prompts, strict=True)))
    for name, prompt, logits in zip(chunks, prompts, batch, strict=True):
        assert torch.equal(PagedRunner(model, block_tokens=16).step([(name, prompt)])[0], logits)
