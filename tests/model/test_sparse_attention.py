"""Sparse attention: the chosen tokens, and no change while all are chosen. With transformers: `families/`."""

from pathlib import Path
from typing import Any

import pytest
import torch

from serving.model.loader import load_model
from serving.model.sparse_attention import best
from tests.model.paged import PagedRunner, pieces_of
from tests.model.random_checkpoint import Dtype, write_random_checkpoint
from tests.model.shapes import CHOOSING, SHARED_CHOICE

LENGTH, TOP_K = 40, 16
INF = float("inf")


@pytest.mark.parametrize(
    ("scores", "count", "chosen"),
    [
        ([1, 3, 3, 2, 3], 3, [1, 2, 4]),
        ([1, 3, 3, 2, 3], 2, [1, 2]),
        ([0.0, -0.0, 0.0, -0.0, 1.0], 3, [0, 1, 4]),
        ([-2, -1, -INF, -INF, -INF], 3, [0, 1, 2]),
        ([5, 4, 3, 2, 1], 4, [0, 1, 2, 3]),
    ],
)
def test_the_best_and_among_equals_the_earlier(scores: list[float], count: int, chosen: list[int]) -> None:
    assert best(torch.tensor([scores]), count).tolist() == [chosen]


def test_the_best_of_many_rows_with_many_equals() -> None:
    scores = torch.randint(0, 6, (50, 200), generator=torch.Generator().manual_seed(0)).float()
    wanted = scores.sort(dim=-1, descending=True, stable=True).indices[:, :70].sort(dim=-1).values
    assert torch.equal(best(scores, 70), wanted)
    # A score that is no number points nowhere else.
    found = best(torch.tensor([[1.0, float("nan"), 2.0, 3.0]]), 2)
    assert 0 <= int(found.min()) <= int(found.max()) < 4


def tokens(length: int = LENGTH) -> list[int]:
    return torch.randint(6, 320, (length,), generator=torch.Generator().manual_seed(1)).tolist()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_no_bit_differs_while_a_context_is_read_whole(dtype: Dtype, tmp_path: Path) -> None:
    folder = write_random_checkpoint(tmp_path, dtype=dtype, **CHOOSING)
    sparse, plain = (PagedRunner(load_model(folder, indexers=indexers)) for indexers in (True, False))
    for name, pieces in {"whole": [TOP_K], "decode": [6] + [1] * (TOP_K - 6), "chunks": [7, 7, 2]}.items():
        assert torch.equal(sparse.run(name, tokens(), pieces), plain.run(name, tokens(), pieces)), name
    rest = tokens()[TOP_K:]
    assert not torch.allclose(sparse.run("whole", rest, [len(rest)]), plain.run("whole", rest, [len(rest)]), atol=0.1)


@pytest.mark.parametrize("kv_dtype", ["auto", "int8"])
@pytest.mark.parametrize(
    "shape",
    [CHOOSING | {"index_n_heads": 1}, SHARED_CHOICE, CHOOSING | {"index_topk": 13}],
    ids=["equal scores", "shared", "a context shorter than is chosen in wider tables"],
)
def test_a_choice_does_not_depend_on_how_a_prompt_was_cut(kv_dtype: Any, shape: dict[str, Any], tmp_path: Path) -> None:
    """With one head every second score is zero: without an order of equals, other tokens would be read."""
    runner = PagedRunner(load_model(write_random_checkpoint(tmp_path, **shape)), num_blocks=96, kv_dtype=kv_dtype)
    whole = runner.run("whole", tokens(), [LENGTH])
    for name, pieces in {
        "decode": [1] * LENGTH, "chunks": pieces_of(7, LENGTH), "mixed": [5, 1, 11, 1, 3, 19],
    }.items():  # fmt: skip
        assert float((runner.run(name, tokens(), pieces) - whole).abs().max()) < 1e-4, name


def test_rows_of_all_kinds_in_one_step(tmp_path: Path) -> None:
    """Short and long contexts, alone and in chunks, with equal and other widths."""
    model = load_model(write_random_checkpoint(tmp_path, **SHARED_CHOICE))
    together, alone = PagedRunner(model, num_blocks=128), PagedRunner(model, num_blocks=128, seed=1)
    starts = {"a": 3, "b": 15, "c": 16, "d": 30, "e": 33, "f": 0, "g": 12, "h": 20}
    pieces = [(name, tokens()[start : start + (1 if name < "f" else 20)]) for name, start in starts.items()]
    for runner in (together, alone):
        for name, start in starts.items():
            if start:
                runner.step([(name, tokens()[:start])])
    for piece, found in zip(pieces, together.step(pieces), strict=True):
        assert float((alone.step([piece])[0] - found).abs().max()) < 1e-4, piece[0]
