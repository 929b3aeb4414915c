"""One tenant's flood in real instances, and another tenant's short requests, counted in decode steps."""

import asyncio
import time
from pathlib import Path

import pytest
from msgspec.structs import replace

from serving.values.sequence import SamplingParams
from tests.live.harness import Pools, collect, executor, small_config
from tests.live.workload import Ask

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(120)]

LENGTH = 60
STREAM = Ask((7, 9, 11) * 8, SamplingParams(max_tokens=LENGTH, temperature=0.0))
SHORT = Ask((5, 3, 8), SamplingParams(max_tokens=8, temperature=0.0))


async def test_short_requests_do_not_wait_for_anothers_streams(checkpoint: Path, shm: Path) -> None:
    config = small_config(checkpoint, gateway={"api_keys": ("a", "b")}, decode={"max_sequences": 8})
    async with Pools(config, shm) as pools:
        await pools.start("prefill", "decode")
        decode = executor(pools.of("decode")[0])
        decode.before = lambda plan: time.sleep(0.01)
        streams = [pools.backend.submit(replace(pools.job(STREAM), key="a")) for _ in range(60)]
        assert 1 <= pools.backend.counts()["sequences"] <= 7, "one seat is left"
        flood = [asyncio.create_task(collect(stream)) for stream in streams]
        took = []
        for _ in range(4):
            before = decode.steps
            told = await collect(pools.backend.submit(replace(pools.job(SHORT), key="b")))
            assert len(told.tokens[0]) == 8
            took.append(decode.steps - before)
        assert max(took) < LENGTH // 2, f"{took} steps, of which 7 are its own"
        for stream, task in zip(streams, flood, strict=True):
            task.cancel()
            stream.cancel()
        await asyncio.gather(*flood, return_exceptions=True)
        decode.before = None
        await pools.audit()
