"""Simulated instances behind the real gateway, links, engine loop and handoff; no Ray, no tensors."""

import asyncio
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from jsonschema import validate

from hardware.cost.cost_model import CostModel
from hardware.cost.device_file import load_device
from hardware.cost.loads import DecodeLoad, PrefillLoad
from hardware.cost.model_config import load_shape
from serving.config.serve import ServeConfig
from serving.config.simulated_cost import accounted_kv
from serving.gateway.api.tokenizer import Tokenizer
from serving.values.sequence import FinishReason, SamplingParams
from tests.hardware.cost.known import KNOWN
from tests.live.harness import Pools, Start, small_config, until
from tests.live.workload import RECORD, Ask

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(120)]

STORYTELLER = Path(__file__).parents[2] / "deploy" / "models" / "storyteller"
COST = CostModel(load_device("ascend-910c"), load_shape(STORYTELLER))
PROMPT = tuple(range(100, 400))


def simulated(pool_mib: int = 64, mode: str = "disaggregated", **simulation: Any) -> ServeConfig:
    """A small model's shape on single NPUs."""
    return small_config(
        STORYTELLER,
        mode=mode,
        pool_mib=pool_mib,
        engine={"executor": "simulated", "block_tokens": 16},
        hardware={"hbm_per_die_mib": 0},
        simulation={"kv_shrink": 1024, **simulation},
    )


def ask(tokens: int, **sampling: Any) -> Ask:
    """A request for this many tokens."""
    return Ask(PROMPT, SamplingParams(**{"max_tokens": tokens, "seed": 11, **sampling}))


@pytest.mark.real_time
async def test_a_request_takes_the_predicted_time(started: Start) -> None:
    pools = await started("prefill", "decode", config=simulated())
    (prefill,), (decode,) = pools.of("prefill"), pools.of("decode")
    begun = time.monotonic()
    told = await pools.ask(ask(200))
    elapsed = time.monotonic() - begun
    assert len(told.tokens[0]) == 200
    assert told.finish == [FinishReason.LENGTH]
    prefilling, decoding = prefill.npus.predicted_s, decode.npus.predicted_s
    step = COST.decode_step_s(DecodeLoad(1, 400, 0.5, 2, 1))
    assert decoding == pytest.approx(199 / 1.7 * step, rel=0.15)
    chunk = COST.prefill_step_s(PrefillLoad(64, 64 * 160, 2))
    assert prefilling == pytest.approx(300 / 64 * chunk, rel=0.2)
    assert prefilling + decoding <= elapsed < prefilling + decoding + 1.0
    await pools.audit()


async def test_outputs_follow_their_grammar_and_are_the_same_on_every_path(shm: Path) -> None:
    tokenizer = Tokenizer.from_folder(STORYTELLER)
    assert tokenizer.eos_id is not None
    record = replace(ask(200, grammar=RECORD, stop_token_ids=(tokenizer.eos_id,)), n=3)
    async with Pools(simulated(mode="aggregated"), shm) as alone:
        await alone.start("aggregated")
        undisturbed = await alone.ask(record)
    for tokens in undisturbed.tokens:
        validate(json.loads(tokenizer.decode(tokens)), json.loads(RECORD.text))
    async with Pools(simulated(time_scale=0.1), shm) as pools:
        await pools.start("prefill", "decode", "decode")
        asked = asyncio.create_task(pools.ask(record))
        choices = pools.backend.core.choices
        await until(lambda: any(len(one.journal.output) > 2 for one in choices.values()), "it is being answered")
        busy = next(one for one in pools.of("decode") if one.engine.snapshot(0.0).kv_blocks_used)
        await pools.kill(busy)
        assert not asked.done()
        told = await asked
        assert (told.tokens, told.finish) == (undisturbed.tokens, [FinishReason.STOP] * 3)


async def test_a_handoff_moves_stamps_and_counts_accounted_bytes(started: Start) -> None:
    pools = await started("prefill", "decode", config=simulated())
    await pools.ask(ask(2))
    (decode,) = pools.of("decode")
    kv = accounted_kv(pools.config)
    assert kv is not None
    assert pools.of("decode")[0].engine.snapshot(0.0).handoff_bytes_in_total == 300 * kv.token_bytes
    assert decode.npus.snapshot()["npus"][0]["moved_bytes"]["rdma"] == 300 * kv.token_bytes
    assert decode.kv.real_bytes < decode.kv.block_bytes == kv.block_bytes


async def test_a_dense_model_with_grouped_attention(started: Start, shm: Path) -> None:
    """A small Qwen3-0.6B: no experts, no drafts, keys and values of each KV head in a block."""
    folder = shm / "qwen3"
    keys = KNOWN["qwen3-0.6b"] | {"vocab_size": 3072, "rms_norm_eps": 1e-6, "max_position_embeddings": 4096}
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(keys | {"rope_theta": 1e6, "eos_token_id": 2}), encoding="utf-8")
    config = simulated(drafts=0)
    model = replace(config.model, path=folder, tokenizer=str(STORYTELLER))
    pools = await started("prefill", "decode", config=replace(config, model=model))
    told = await pools.ask(ask(20))
    assert (len(told.tokens[0]), told.finish) == (20, [FinishReason.LENGTH])
    assert pools.of("decode")[0].engine.snapshot(0.0).handoff_bytes_in_total == 300 * 114_688
    await pools.audit()


@pytest.mark.real_time
async def test_stopping_does_not_wait_for_a_step(started: Start) -> None:
    pools = await started("prefill", "decode", config=simulated(time_scale=0.001))
    generation = pools.submit(ask(10))
    await until(lambda: pools.of("prefill")[0].engine.snapshot(0.0).steps_total > 0, "a step runs")
    assert not generation.closed  # the step continues
    begun = time.monotonic()
    for instance in pools.instances:
        await instance.stop()
    assert time.monotonic() - begun < 2.0
    pools.instances.clear()
