"""Gates of a group whose map masks experts choose others, exactly as those of one process, and as torch."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from serving.instance.core.settings import EngineSettings
from serving.instance.executors.torch_executor import TorchExecutor
from serving.model.experts import ExpertLayer
from serving.model.loader import load_model
from serving.model.model import Model
from serving.model.native.layout import MAP_MASKED
from tests.group.rank_threads import BLOCKS, SETTINGS, RankThreads, checkpoint, drive
from tests.group.split_group import specs_of, with_drafts
from tests.instance.native_pair import dirty_cache, native_or_skip
from tests.model.shapes import GPT_OSS


def masked_experts(group: RankThreads) -> list[set[int]]:
    """Experts by layer that its gates can do without: those with the lowest numbers that may be masked."""
    shape = group.model.config.experts
    assert shape is not None
    masked: set[int] = set()
    for expert in range(shape.experts):
        masked |= {expert} if shape.rule.may_mask(masked | {expert}, shape.experts) else set()
    assert masked
    return [{(expert + layer) % shape.experts for expert in masked} if shape.gate.groups == 1 else masked
            for layer in range(group.layers)]  # fmt: skip


def mask_gates(model: Model, masked: Sequence[set[int]]) -> None:
    """Have the gates of a process with all experts choose others."""
    blocks = [*model.blocks, *(layer.block for layer in model.mtp[:1])]
    gates = [block.feed.gate for block in blocks if isinstance(block.feed, ExpertLayer)]
    for gate, experts in zip(gates, masked, strict=True):
        bias = torch.zeros(model.config.expert_count) if gate.bias is None else gate.bias.clone()
        bias[sorted(experts)] = float("-inf")
        gate.bias = bias


@pytest.mark.parametrize(
    ("kind", "settings", "shape"),
    [
        ("float32", SETTINGS, {}),
        ("int8", with_drafts(SETTINGS, 2), {}),
        ("bfloat16", SETTINGS, {"n_group": 1, "topk_group": 1}),
        ("bfloat16", SETTINGS, GPT_OSS),
    ],
)
def test_gates_choose_among_experts_that_are_not_masked(
    kind: str, settings: EngineSettings, shape: dict[str, Any], tmp_path: Path
) -> None:
    """Exactly as one process whose gates have the bias minus infinity for the same experts, and as torch."""
    native_or_skip()
    folder, dtype = checkpoint(kind, tmp_path, **shape)
    group, work = RankThreads(folder, dtype, 3, seed=4, settings=settings), [specs_of(0, ""), specs_of(1, ""), []]
    every, masked = [spec for specs in work for spec in specs], masked_experts(group)
    table, with_all = group.spread.expert_map.copy(), group.alone(every)
    for layer, experts in enumerate(masked):
        table[layer, :, sorted(experts)] = MAP_MASKED
    for executor in group.executors:
        executor.group.set_map(2, table)
    found = {name: answer for answers in group.together(work) for name, answer in answers.items()}
    assert all(answer.masked >= len(answer.tokens) for answer in found.values())
    assert [executor.group.masked_rows > 0 for executor in group.executors] == [True, True, False]
    mask_gates(group.model, masked)
    unmarked = {name: replace(answer, masked=0) for name, answer in found.items()}
    assert unmarked == group.alone(every) != with_all
    if kind == "float32":
        plain = load_model(folder, dtype=dtype)
        mask_gates(plain, masked)
        alone = drive(TorchExecutor(plain, dirty_cache(plain, BLOCKS)), every, settings)
        assert alone == unmarked
