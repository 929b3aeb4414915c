"""Transfers, loading and memory against the figures that the paper derives or prints."""

from dataclasses import replace

import pytest

from hardware.cost import DEEPSEEK_R1, CostModel, load_device
from hardware.errors import SpecError
from tests.hardware.cost.known import known


def test_transfers_take_what_links_and_pool_give(model: CostModel) -> None:
    request = model.kv_bytes(4096)
    assert model.handoff_s(request) == pytest.approx(11.5e-3, rel=0.01)
    assert model.handoff_s(request, links=4) == pytest.approx(11.5e-3 / 4, rel=0.01)
    assert model.handoff_s(0) == pytest.approx(5.5e-6)
    assert model.ub_read_s(request) == pytest.approx(1.96e-3, rel=0.01)
    assert model.ub_read_s(request, pooled=False) < model.ub_read_s(request)
    assert model.ub_write_s(request) == pytest.approx(request / 107e9, rel=0.01)
    assert model.ub_write_s(request, pooled=False) == pytest.approx(request / 135e9, rel=0.01)
    assert model.ub_read_s(512) == pytest.approx(1.7e-6, rel=0.01)
    blocks = model.kv_bytes(16_384 * 16)
    assert model.pool_load_s(blocks, 16) == pytest.approx(blocks / 16 / 1.407e9, rel=0.01)
    assert model.pool_load_s(blocks, 16, 1.7) == pytest.approx(0.677, rel=0.01)
    assert model.vpc_s(request, dies=16) == pytest.approx(request / 50e9, rel=0.02)
    assert model.vpc_s(request) > 10 * model.ub_read_s(request)


def test_loading_a_model(model: CostModel) -> None:
    assert model.model_load_s("storage") == pytest.approx(320, rel=0.01)
    assert model.model_load_s("storage", 8) == pytest.approx(2560, rel=0.01)
    assert model.model_load_s("pool", 8) == model.model_load_s("pool") == pytest.approx(5, rel=0.01)
    assert model.model_load_s("prewarmed") == pytest.approx(0)
    assert 0 < model.model_load_s("peer") < model.model_load_s("pool")
    assert [round(model.model_switch_s(hit)) for hit in (0, 0.125, 1)] == [320, 281, 5]


def test_memory_of_decode_and_prefill_dies(model: CostModel) -> None:
    plan = model.hbm_plan("decode", 320)
    assert plan.weights == pytest.approx(17.0e9, rel=0.1)
    assert plan.buffers == 645 * 2**20
    assert plan.kv_tokens == pytest.approx(600_000, rel=0.05)
    assert plan.instance_kv_tokens == plan.kv_tokens * 320
    assert plan.weights + plan.buffers + plan.workspace + plan.kv == plan.hbm
    both = model.hbm_plan("aggregated", 320)
    assert both.buffers == model.hbm_plan("decode", 320).buffers + model.hbm_plan("prefill", 320).buffers
    plan = model.hbm_plan("prefill", 32)
    assert plan.weights == pytest.approx(37.7e9, rel=0.01)
    assert plan.instance_kv_tokens == plan.kv_tokens, "every die of the group holds the same latents"
    assert 16 * 16_384 < plan.kv_tokens < 400_000, "a published step fits: Table 3 of the paper"
    plan = CostModel(load_device("h800")).hbm_plan("prefill", 32)
    assert plan.instance_kv_tokens == 32 * plan.kv_tokens


def test_up_projections_of_prefill_lie_where_their_heads_are(model: CostModel) -> None:
    """Paper 4.3.1: split by heads and not absorbed, between the two exchanges; 62 layers with the MTP module."""
    whole, split = model.hbm_plan("decode", 32).weights, model.hbm_plan("prefill", 32).weights
    heads, absorbed = 128 * (1536 * 192 + 512 * 256), 128 * 512 * 256
    assert whole - split == 62 * (heads * 31 // 32 + absorbed)
    indexed = CostModel(load_device("ascend-910c"), known("deepseek-v3.2"))
    assert indexed.hbm_plan("prefill", 32).weights == indexed.hbm_plan("decode", 32).weights, "may be absorbed"
    apart = CostModel(load_device("h800"))
    assert apart.hbm_plan("prefill", 32).weights == apart.hbm_plan("decode", 32).weights, "own prompts, all heads"


def test_vpc_loads_take_both_ways_one_after_the_other(model: CostModel) -> None:
    """Over TCP into the host's memory, at 36 % of 6.25 GB/s an NPU, then as over UB."""
    ub, vpc = model.pool_load_s(1e9, 1), model.pool_load_s(1e9, 1, plane="vpc")
    assert vpc - ub == pytest.approx(1 / (0.3625 * 6.25) + 50e-6, rel=1e-3)
    assert model.pool_load_s(1e9, 1, 2.0, "vpc") == pytest.approx(0.5, rel=1e-3), "a stated rate holds on any plane"


def test_impossible_questions(model: CostModel) -> None:
    with pytest.raises(SpecError, match="over 0 links"):
        model.handoff_s(1, links=0)
    with pytest.raises(SpecError, match="never ends"):
        model.pool_load_s(1, 0)
    with pytest.raises(SpecError, match="never ends"):
        model.pool_load_s(1, 1, 0.0)
    with pytest.raises(SpecError, match="0 instances"):
        model.model_load_s("pool", 0)
    with pytest.raises(SpecError, match="use pool, storage"):
        model.model_load_s("tape")  # type: ignore[arg-type]
    with pytest.raises(SpecError, match="no share"):
        model.model_switch_s(1.5)
    with pytest.raises(SpecError, match="role 'both'"):
        model.hbm_plan("both", 8)  # type: ignore[arg-type]
    with pytest.raises(SpecError, match="no memory plan"):
        model.hbm_plan("decode", 0)
    with pytest.raises(SpecError, match="does not fit on 8 dies"):
        CostModel(load_device("ascend-910c")).hbm_plan("decode", 8)
    with pytest.raises(SpecError, match="does not fit"):
        CostModel(load_device("h800"), replace(DEEPSEEK_R1, layers=200)).hbm_plan("prefill", 32)
