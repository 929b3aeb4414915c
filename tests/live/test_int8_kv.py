"""KV blocks in int8: the pools produce the tokens of one plain process that stores its KV the same way."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from serving.config.serve import ServeConfig
from serving.model.kv_cache import KvCache
from serving.model.kv_shape import KvDtype
from tests.live.harness import Pools, Start, small_config
from tests.live.workload import Reference, varied_asks

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(600)]


class Int8Reference(Reference):
    """The plainest generator over an int8 cache."""

    def __init__(self, checkpoint: Path) -> None:
        super().__init__(checkpoint)
        plain = self._generator
        model = plain.model
        plain._cache = KvCache(model.config, 1, plain.capacity, model.dtype, kv_dtype="int8")


def int8_config(checkpoint: Path, kv_dtype: KvDtype = "int8") -> ServeConfig:
    config = small_config(checkpoint, pool_mib=2)
    return replace(config, engine=replace(config.engine, kv_dtype=kv_dtype))


@pytest.mark.nightly("tests/instance/test_native_families.py::test_both_steps_write_the_same_rows")
async def test_handoffs_chunks_and_reused_prefixes(started: Start, checkpoint: Path) -> None:
    reference = Int8Reference(checkpoint)
    asks = varied_asks(block_tokens=16, step_tokens=64)[:40]
    pools = await started("prefill", "decode", config=int8_config(checkpoint))
    told = await asyncio.gather(*(pools.ask(ask) for ask in asks))
    for ask, answer in zip(asks, told, strict=True):
        assert answer.tokens == reference.outputs(ask), ask
    again = await pools.ask(asks[0])
    assert again.tokens == reference.outputs(asks[0])
    assert pools.of("decode")[0].engine.snapshot(0.0).handoffs_in_total > 0
    await pools.audit()


async def test_the_same_memory_holds_more_blocks(checkpoint: Path, shm: Path) -> None:
    blocks = {}
    kinds: tuple[KvDtype, ...] = ("auto", "int8")
    for kind in kinds:
        async with Pools(int8_config(checkpoint, kind), shm) as pools:
            await pools.start("decode")
            blocks[kind] = pools.instances[0].engine.snapshot(0.0).kv_blocks_total
    assert blocks["int8"] / blocks["auto"] == pytest.approx(160 / 68, rel=0.02)  # float32 rows, and int8 ones
