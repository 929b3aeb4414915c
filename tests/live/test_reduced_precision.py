"""bfloat16 and INT8, whose last bits choose tokens: the same ones on every way through the pools."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from serving.config.serve import ServeConfig
from serving.tools.quantize.run import quantise
from serving.tools.quantize.settings import Settings
from tests.live.harness import Pools, Start, small_config
from tests.live.workload import Ask, varied_asks
from tests.model.random_checkpoint import write_random_checkpoint

SAME_AS = "tests/instance/test_same_bits.py::test_however_a_sequence_is_cut_and_begun_again"
pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(600), pytest.mark.nightly(SAME_AS)]

ASKS = varied_asks(block_tokens=16, step_tokens=64)[:60]


@pytest.fixture(scope="module", params=["bfloat16", "int8"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    plain, int8 = (tmp_path_factory.mktemp("reduced") / name for name in ("plain", "int8"))
    plain.mkdir()
    write_random_checkpoint(plain, dtype="bfloat16")
    if request.param == "bfloat16":
        return plain
    quantise(plain, int8, [], Settings(tokens=256, trials=False), lambda *_: None)
    return int8


def native_config(folder: Path, mode: str, drafts: int = 0, pool_mib: int = 4) -> ServeConfig:
    config = small_config(folder, mode=mode, pool_mib=pool_mib, engine={"executor": "native", "draft_tokens": drafts})
    return replace(config, model=replace(config.model, dtype="bfloat16"))


@pytest.fixture(scope="module")
def alone(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[Ask, list[list[int]]]:
    """What one instance answers when it is asked one thing at a time, and nothing is in its cache."""

    async def ask_all() -> dict[Ask, list[list[int]]]:
        config = native_config(folder, "aggregated")
        config = replace(config, engine=replace(config.engine, prefix_reuse=False))
        async with Pools(config, tmp_path_factory.mktemp("alone")) as pools:
            await pools.start("aggregated")
            return {ask: (await pools.ask(ask)).tokens for ask in ASKS}

    return asyncio.run(ask_all())


async def check(pools: Pools, asks: list[Ask], alone: dict[Ask, list[list[int]]]) -> None:
    """All of them at once."""
    told = await asyncio.gather(*(pools.ask(ask) for ask in asks))
    assert [ask for ask, answer in zip(asks, told, strict=True) if answer.tokens != alone[ask]] == []


@pytest.mark.parametrize("drafts", [0, 2])
@pytest.mark.parametrize("roles", [("prefill", "decode"), ("aggregated",)], ids=["disaggregated", "aggregated"])
async def test_in_company_and_with_what_is_cached(
    started: Start, roles: tuple[str, ...], drafts: int, folder: Path, alone: dict[Ask, list[list[int]]]
) -> None:
    mode = "aggregated" if len(roles) == 1 else "disaggregated"
    pools = await started(*roles, config=native_config(folder, mode, drafts))
    await check(pools, ASKS, alone)
    await check(pools, ASKS, alone)
    await pools.audit()
