"""Decode steps on static buffers equal plain ones; so do recorded graphs, where there is a GPU."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from serving.ids import BlockId
from serving.instance.executors.decode_graphs import MAX_GRAPHS, MAX_ROWS, CudaRecorder, DecodeGraphs, rounded
from serving.instance.executors.step_batch import Feed, build_batch
from serving.model.kv_cache import KvCache
from serving.model.kv_shape import split_layers
from serving.model.loader import load_model
from serving.model.model import Model
from serving.values.layer_split import GONE
from tests.model.families.checkpoints import write_family
from tests.model.random_checkpoint import write_random_checkpoint
from tests.model.shapes import CHOOSING, SHARED_CHOICE

BLOCKS, BLOCK_TOKENS = 24, 4


class Again:
    """Recomputes into the same memory at every replay, like a graph, but without one."""

    def __init__(self) -> None:
        self.recorded = 0

    def record(self, compute: Callable[[], Tensor]) -> tuple[Tensor, Callable[[], object]]:
        self.recorded += 1
        result = compute()
        return result, lambda: result.copy_(compute())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_random_checkpoint(tmp_path_factory.mktemp("graphs") / "model")


def table(*blocks: int) -> list[BlockId]:
    return [BlockId(block) for block in blocks]


FIRST = [Feed([7, 8, 9, 10, 11, 12], 0, table(5, 2)), Feed([20, 21, 22], 0, table(7)), Feed([30], 0, table(11))]
STEPS = [
    [Feed([13], 6, table(5, 2), True), Feed([23], 3, table(7), True), Feed([31], 1, table(11), True)],
    [Feed([14, 15, 16], 7, table(5, 2, 9), True), Feed([24], 4, table(7, 3), True), Feed([32], 2, table(11), True)],
    [Feed([15], 8, table(5, 2, 9), True), Feed([25], 5, table(7, 3), True), Feed([33], 3, table(11), True)],
]


def plainly(model: Model, cache: KvCache, feeds: list[Feed]) -> Tensor:
    batch = build_batch(feeds, cache, model.config.attention.heads)
    hidden = model.forward(batch.forward, cache)
    return torch.cat([hidden[torch.tensor(list(rows))] for rows in batch.rows])


def compare(model: Model, recorder: object, tolerance: float) -> None:
    ours, theirs = (KvCache(model.config, BLOCKS, BLOCK_TOKENS, model.dtype, model.device) for _ in range(2))
    graphs = DecodeGraphs(model, ours, recorder)  # type: ignore[arg-type]
    with torch.inference_mode():
        plainly(model, ours, FIRST)
        plainly(model, theirs, FIRST)
        for feeds in STEPS:
            found = graphs.forward(feeds)
            assert found is not None
            assert torch.allclose(found, plainly(model, theirs, feeds), rtol=tolerance, atol=tolerance)
        assert torch.allclose(ours.tensor, theirs.tensor, rtol=tolerance, atol=tolerance), "and store the same"


def test_steps_on_static_buffers(folder: Path) -> None:
    recorder = Again()
    compare(load_model(folder), recorder, 1e-5)
    assert recorder.recorded == 3, "three rows over two blocks, five rows, three rows over three"


@pytest.mark.parametrize("shape", [CHOOSING, SHARED_CHOICE], ids=["own", "shared"])
def test_steps_that_choose_on_static_buffers(tmp_path: Path, shape: dict[str, Any]) -> None:
    compare(load_model(write_random_checkpoint(tmp_path, **shape | {"index_topk": 6})), Again(), 1e-5)


def test_steps_after_a_block_that_the_window_has_passed(tmp_path: Path) -> None:
    write_family(tmp_path, "mistral beyond its window")
    keys = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(keys | {"sliding_window": 4}))
    model = load_model(tmp_path)
    split = split_layers(model.config)
    assert split is not None
    freed, kept = (KvCache(model.config, BLOCKS, BLOCK_TOKENS, model.dtype, split=split) for split in (split, None))
    graphs = DecodeGraphs(model, freed, Again())
    with torch.inference_mode():
        for feeds in (FIRST, STEPS[0]):
            plainly(model, freed, feeds)
            plainly(model, kept, feeds)
        for feeds in STEPS[1:]:
            found = graphs.forward([feeds[0]._replace(block_table=[GONE, *table(2, 9)]), *feeds[1:]])
            assert found is not None
            assert torch.allclose(found, plainly(model, kept, feeds), rtol=1e-5, atol=1e-5)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_recorded_graphs(folder: Path) -> None:
    compare(load_model(folder, device="cuda", dtype="bfloat16"), CudaRecorder(), 0.05)


def test_a_step_too_large_and_a_shape_too_many_are_left_to_others(folder: Path) -> None:
    model = load_model(folder)
    graphs = DecodeGraphs(model, KvCache(model.config, BLOCKS, BLOCK_TOKENS, model.dtype), Again())
    with torch.inference_mode():
        assert graphs.forward([Feed([1], 0, table(0), True)] * (MAX_ROWS + 1)) is None
        for count in range(MAX_GRAPHS):
            graphs._shapes[(-1, count)] = None  # type: ignore[assignment]
        assert graphs.forward([Feed([1], 0, table(0), True)]) is None


@pytest.mark.parametrize(("n", "up"), [(1, 1), (2, 2), (3, 3), (4, 4), (5, 6), (7, 8), (9, 12), (13, 16), (100, 128)])
def test_rounded(n: int, up: int) -> None:
    assert rounded(n) == up
