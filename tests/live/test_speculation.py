"""Pools with draft tokens: the tokens of one plain process, through handoffs, chunks, prefixes and failures."""

import asyncio
import logging
from dataclasses import replace
from pathlib import Path

import pytest

from serving.config.engine import DraftSource
from serving.config.serve import ServeConfig
from serving.tools.replay import Difference, replay
from tests.fakes.every_guess import guess_always
from tests.live.harness import Pools, small_config
from tests.live.workload import Ask, Reference, varied_asks
from tests.model.random_checkpoint import write_random_checkpoint

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(600)]


def guessing(checkpoint: Path, drafts: DraftSource = "layer", log: Path | None = None) -> ServeConfig:
    config = small_config(checkpoint, pool_mib=2, hardware={"hbm_per_die_mib": 128})
    folder = str(log) if log is not None else ""
    return replace(config, engine=replace(config.engine, drafts=drafts, draft_tokens=3, decision_log=folder))


def differences(folder: Path) -> list[Difference | None]:
    """Differences of each log in a folder."""
    return [replay(path).difference for path in sorted(folder.iterdir())]


@pytest.mark.parametrize("drafts", ["layer", "lookup"])
async def test_random_weights_and_a_replay(
    checkpoint: Path,
    reference: Reference,
    shm: Path,
    tmp_path: Path,
    drafts: DraftSource,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Few blocks, so that sequences are preempted; every decision is made again from the log, draft tokens included."""
    if drafts == "lookup":
        guess_always(monkeypatch)
    asks = varied_asks(block_tokens=16, step_tokens=64)[:60]
    async with Pools(guessing(checkpoint, drafts, tmp_path), shm) as pools:
        await pools.start("prefill", "decode")
        told = await asyncio.gather(*(pools.ask(ask) for ask in asks))
        for ask, answer in zip(asks, told, strict=True):
            assert answer.tokens == reference.outputs(ask), ask
        snapshot = pools.of("decode")[0].engine.snapshot(0.0)
        assert snapshot.draft_tokens_total > 50
        assert len(snapshot.accepted_drafts_total) == 8, "a grammar might force so many"
        await pools.audit()
    assert differences(tmp_path) == [None] * 3


async def test_a_checkpoint_that_cannot_guess_says_so(
    tmp_path: Path, shm: Path, caplog: pytest.LogCaptureFixture
) -> None:
    checkpoint = write_random_checkpoint(tmp_path / "model", num_nextn_predict_layers=0)
    with caplog.at_level(logging.WARNING):
        async with Pools(guessing(checkpoint), shm) as pools:
            await pools.start("prefill", "decode")
            assert pools.instances[0].settings.draft_tokens == 0
            ask = Ask((5, 6, 7))
            assert (await pools.ask(ask)).tokens == Reference(checkpoint).outputs(ask)
    told = {record.message for record in caplog.records if "draft" in record.message}
    assert told == {"model has no draft layer (MTP): draft_tokens = 3 is treated as 0"}
