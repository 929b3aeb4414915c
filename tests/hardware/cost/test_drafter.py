"""Separate draft models: their passes, their cache, their memory, and what is refused."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from hardware.cost import CostModel, DecodeLoad, load_device
from hardware.cost.drafter import KNOWN_DRAFTERS, load_drafter, with_drafter
from hardware.cost.parallelism import Parallelism
from hardware.errors import SpecError
from tests.hardware.cost.known import known

KIMI = known("kimi-k2")
DRAFTING = with_drafter(KIMI, "kimi-k2-eagle3")
DEVICE = load_device("ascend-910c")


def test_each_draft_is_one_pass_and_the_target_verifies_all_of_them() -> None:
    """A step with k drafts is the target's step with 1 + k rows, and k passes of the drafter."""
    model, plain = CostModel(DEVICE, DRAFTING), CostModel(DEVICE, replace(KIMI, mtp_layers=1)).decode
    loads = [DecodeLoad(16, 16 * 4096, None, 64, drafts, False) for drafts in range(4)]
    steps = [model.decode_step_s(load) for load in loads]
    passes = [model.decode.drafts_s(load) for load in loads]
    assert passes[0] == 0 < passes[1] < passes[2] < passes[3]
    layer, dense = plain.layers_s(loads[3], microbatch=False)
    heads = plain.outside_s(replace(loads[3], requests=64, drafts=0))
    assert steps[3] - passes[3] == pytest.approx(60 * layer + dense + heads)
    step = model.decode_step(loads[3])
    assert sum(part.time_s for part in step.parts) == pytest.approx(step.total_s)
    assert next(part for part in step.parts if part.name == "draft model").runs == 3


def test_a_cached_token_takes_memory_in_the_drafter_too() -> None:
    keys_and_values = 2 * 64 * 128 * 2
    assert DRAFTING.kv_token_bytes() == KIMI.kv_token_bytes() + keys_and_values
    alone, drafting = (CostModel(DEVICE, shape).hbm_plan("decode", 64) for shape in (KIMI, DRAFTING))
    assert drafting.weights - alone.weights == pytest.approx(2 * (4 * 7168 * 8192 + 3 * 7168 * 18_432), rel=0.6)
    assert drafting.kv_tokens < alone.kv_tokens


def test_experts_apart_draft_by_a_separate_model() -> None:
    model = CostModel(DEVICE, DRAFTING, decode=Parallelism(expert_dies=64, domains=1))
    load = DecodeLoad(16, 16 * 4096, None, 128, 3, True)
    step = model.decode_step(load)
    assert next(part for part in step.parts if part.name == "draft model").time_s == model.decode.drafts_s(load)


def test_sizes_are_read_as_libraries_store_them(tmp_path: Path) -> None:
    config = dict(KNOWN_DRAFTERS["qwen3-235b-eagle3"].config)
    small = config.pop("draft_vocab_size")
    nested = {"transformer_layer_config": config, "draft_vocab_size": small}
    for number, content in enumerate((config | {"draft_vocab_size": small}, nested)):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(content), encoding="utf-8")
        shape = load_drafter(str(folder))
        assert (shape.layers, shape.vocab, shape.hidden) == (1, 32_000, 4096)
        assert with_drafter(known("qwen3-30b-a3b"), str(folder)).mtp_layers == 0


def test_what_is_no_draft_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"no draft model 'eagle': name a folder .* qwen3-235b-eagle3"):
        load_drafter("eagle")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt2"}), encoding="utf-8")
    with pytest.raises(SpecError, match="'gpt2' is not known"):
        load_drafter(str(tmp_path))
    experts = {**KNOWN_DRAFTERS["kimi-k2-eagle3"].config, "model_type": "qwen3_moe", "num_experts": 8,
               "num_experts_per_tok": 2, "moe_intermediate_size": 64}  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(experts), encoding="utf-8")
    with pytest.raises(SpecError, match="only dense draft models"):
        load_drafter(str(tmp_path))
    with pytest.raises(SpecError, match="name a draft model"):
        KIMI.check_drafts(1)
    with pytest.raises(SpecError, match="attention_tp is 3"):
        CostModel(DEVICE, DRAFTING, decode=Parallelism(attention_tp=3))
