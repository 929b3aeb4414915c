"""Decisions of a live system, repeated from its logs: token by token, block by block, route by route."""

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from serving.cli import main
from serving.config.kvcache import KvCacheConfig
from serving.config.serve import ServeConfig
from serving.errors import ConfigError, HandoffError, OverloadedError
from serving.tools.replay import ReplayResult, replay, replay_log
from serving.values.decision_log import SUFFIX
from serving.values.sequence import SamplingParams
from tests.instance.decision_logs import doctored, gateway_kinds, pairs
from tests.kvpool.pool_cluster import PoolCluster
from tests.live.harness import SECRET, Pools, collect, executor, small_config
from tests.live.workload import Ask, tokens, varied_asks

KINDS = {
    "engine": {"Add", "Adopt", "Release", "Cancel", "NextStep", "StepDone", "PullDone", "PullsNow"},
    "gateway": {"Submit", "CancelJob", "InstanceUp", "InstanceStatus", "InstanceSays", "InstanceDown"},
}
INSIDE = {
    "Prefilled", "Adopted", "Tokens", "Lost",
    "RoutePrefill", "RouteDecode", "Add", "Adopt", "Release", "Cancel", "SequenceUpdate", "JobOver",
}  # fmt: skip
"""News and effects in the log of a gateway."""


def recorded(checkpoint: Path, folder: Path, **sections: Any) -> ServeConfig:
    """Pools that record, with few blocks (136 of 16 tokens) and a gateway that queues."""
    sections = {"gateway": {"max_running_sequences": 120}, **sections}
    config = small_config(checkpoint, pool_mib=1, **sections)
    return replace(config, engine=replace(config.engine, decision_log=str(folder), max_attempts=20))


def mixed_asks(rng: random.Random) -> list[Ask]:
    """200 requests: shared prefixes, several choices, sampling, log-probabilities, answers that outgrow the blocks."""
    asks = varied_asks(block_tokens=16, step_tokens=64, count=160)
    long = SamplingParams(max_tokens=70, temperature=0.0)
    asks += [Ask(tokens(rng, rng.randrange(60, 90)), long) for _ in range(30)]
    asks += [
        Ask(tokens(rng, 40), structs.replace(long, max_tokens=6, logprobs=2, prompt_logprobs=1)) for _ in range(10)
    ]
    rng.shuffle(asks)
    return asks


async def ask(pools: Pools, one: Ask, cancel_after_s: float | None) -> None:
    try:
        generation = pools.submit(one)
    except OverloadedError:
        return
    if cancel_after_s is None:
        await collect(generation)
    else:
        await asyncio.sleep(cancel_after_s)
        generation.cancel()


async def mixed_life(config: ServeConfig, shm: Path) -> int:
    """200 requests with cancels, damaged handoffs and a lost instance. Returns: preemptions."""
    rng = random.Random(5)
    async with Pools(config, shm) as pools:
        await pools.start("prefill", "prefill", "decode", "decode")
        lost = pools.of("decode")[0]
        fail_some_pulls(pools, rng)
        for instance in pools.of("decode"):  # as long as a step takes, so many sequences come together in it
            executor(instance).before = lambda _: time.sleep(0.008)
        cancels = [rng.random() * 0.2 if rng.random() < 0.15 else None for _ in range(200)]
        jobs = [asyncio.create_task(ask(pools, *one)) for one in zip(mixed_asks(rng), cancels, strict=True)]
        while executor(lost).steps < 20:  # noqa: ASYNC110 - a test executor has no event
            await asyncio.sleep(0.005)
        await pools.kill(lost)
        await asyncio.gather(*jobs)
        return sum(i.engine.snapshot(0.0).preemptions_total for i in pools.instances)


def fail_some_pulls(pools: Pools, rng: random.Random) -> None:
    """One pull in twenty ends in an error."""
    for instance in pools.of("decode"):
        transport: Any = instance.loop.moves._transport
        pull = transport.pull

        def sometimes(*arguments: Any, _pull: Callable[..., int] = pull) -> int:
            if rng.random() < 0.05:
                raise HandoffError("the link is down")
            return _pull(*arguments)

        transport.pull = sometimes


@pytest.fixture(scope="module")
def logs(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Logs of one such life."""
    folder = tmp_path_factory.mktemp("logs") / "made by the recorder"
    segments = tmp_path_factory.mktemp("shm")
    assert asyncio.run(mixed_life(recorded(checkpoint, folder), segments)) > 0, "blocks were short"
    return folder


def results(folder: Path) -> dict[str, ReplayResult]:
    return {path.name: replay(path) for path in sorted(folder.iterdir())}


def test_every_decision_is_made_again(logs: Path) -> None:
    found = results(logs)
    names = ["decode-2", "decode-3", "prefill-0", "prefill-1"]
    assert list(found) == [*(f"engine-{name}{SUFFIX}" for name in names), f"gateway-gateway{SUFFIX}"]
    assert [(name, result.difference, result.ending) for name, result in found.items()] == [
        (name, None, "") for name in found
    ]
    seen: dict[str, Counter[str]] = {"engine": Counter(), "gateway": Counter()}
    for result in found.values():
        seen[result.kind] += result.calls
    for kind, expected in KINDS.items():
        assert expected <= set(seen[kind]), f"{kind}: this life should have had all of these"
    assert seen["gateway"]["Submit"] >= 200
    data = (logs / f"gateway-gateway{SUFFIX}").read_bytes()
    assert set(gateway_kinds(data)) >= INSIDE
    assert any(call[1][0] == "Submit" and not effects for call, effects in pairs(data)[:-1]), (
        "some waited for their turn"
    )
    assert seen["engine"]["StepDone"] > 100


def test_nobody_else_may_read_a_log(logs: Path) -> None:
    assert {path.stat().st_mode & 0o777 for path in logs.iterdir()} == {0o600}


def at(kind: str, which: int = 0) -> Callable[[list[tuple[Any, Any]]], int]:
    return lambda log: [i for i, (call, _) in enumerate(log) if call[0] != "End" and call[1][0] == kind][which]


def flip_token(log: list[tuple[Any, Any]]) -> int:
    where = at("StepDone", 5)(log)
    log[where][0][1][1]["results"][0]["tokens"][0] ^= 1
    return where


def move_block(log: list[tuple[Any, Any]]) -> int:
    where, pull = next(
        (i, effect)
        for i, (_, effects) in enumerate(log)
        if i > 100
        for effect in effects
        if effect["is"] == "PullOrder"
    )
    pull["blocks"][0] += 1
    return where


@pytest.mark.parametrize(
    ("machine", "change", "where"),
    [("engine-decode-3", flip_token, "tokens"), ("engine-decode-3", move_block, ".blocks")],
)
def test_one_change_is_found_and_named(
    logs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], machine: str, change: Callable, where: str
) -> None:
    touched: list[int] = []
    data = (logs / f"{machine}{SUFFIX}").read_bytes()
    spoiled = tmp_path / f"spoiled{SUFFIX}"
    spoiled.write_bytes(doctored(data, lambda log: touched.append(change(log))))
    found = replay(spoiled).difference
    assert found is not None
    assert found.where.endswith(where)
    assert touched[0] + 1 <= found.number <= touched[0] + 3, "found where it happened"
    assert main(["replay", str(spoiled)]) == 1
    printed = capsys.readouterr().out
    assert printed.startswith("DIFFERENT")
    assert f"first difference: call {found.number}, {found.call}: {found.where} was" in printed


def test_a_log_cut_anywhere_is_replayed_to_there(logs: Path) -> None:
    data = (logs / f"engine-prefill-0{SUFFIX}").read_bytes()
    calls = len(pairs(data))
    rng = random.Random(9)
    for cut in [rng.randrange(2_000, len(data)) for _ in range(10)]:
        result = replay_log(data[:cut], "cut")
        assert result.identical
        assert result.total < calls
        assert "its process was killed" in result.ending


def test_the_command_replays_a_folder(logs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", str(logs)]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == 5
    assert all(line.startswith("identical  ") for line in printed)
    assert main(["replay", "--json", str(logs / f"gateway-gateway{SUFFIX}")]) == 0
    assert '"identical": true' in capsys.readouterr().out


def test_a_broken_log_does_not_stop_the_others(logs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = (logs / f"gateway-gateway{SUFFIX}").read_bytes()
    for name, data in (("a", b"nothing"), ("b", whole[:2_000]), ("c", whole)):
        (tmp_path / f"{name}{SUFFIX}").write_bytes(data)
    assert main(["replay", str(tmp_path)]) == 1
    printed = capsys.readouterr().out
    assert [line.split()[0] for line in printed.splitlines() if line[0] != " "] == ["BROKEN", "INCOMPLETE", "identical"]
    assert main(["replay", "--json", str(tmp_path)]) == 1
    told = json.loads(capsys.readouterr().out)
    assert [(one["identical"], one["complete"]) for one in told] == [(False, False), (True, False), (True, True)]
    assert "is not a decision log" in told[0]["error"]


def test_a_log_without_its_end_has_an_exit_code_of_its_own(
    logs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Cut after a whole frame: its contents are valid."""
    path = tmp_path / f"cut{SUFFIX}"
    path.write_bytes(doctored((logs / f"gateway-gateway{SUFFIX}").read_bytes(), lambda log: log.__delitem__(-1)))
    assert main(["replay", str(path)]) == 6
    assert capsys.readouterr().out.startswith("INCOMPLETE  gateway")


@pytest.mark.parametrize(
    ("argument", "message"), [("none", "no decision log"), (".", f"holds no {SUFFIX} file; was [engine] decision_log")]
)
def test_the_command_names_what_is_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], argument: str, message: str
) -> None:
    assert main(["replay", str(tmp_path / argument)]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("routing", ["locality", "power_of_two"])
def test_with_a_cache_pool_and_every_routing(checkpoint: Path, tmp_path: Path, shm: Path, routing: str) -> None:
    config = recorded(checkpoint, tmp_path / "logs", gateway={"routing": routing})
    config = replace(config, kvcache=KvCacheConfig(replicas=1))
    asks = [Ask(one.prompt, one.sampling, 1) for one in varied_asks(block_tokens=16, step_tokens=64)[:40]]

    async def life() -> None:
        with PoolCluster(1, node="node", secret=SECRET, capacity_bytes=32 << 20) as memory:
            async with Pools(config, shm, pool_view=memory.view) as pools:
                await pools.start("prefill", "prefill", "decode")
                await asyncio.gather(*(pools.ask(one) for one in asks))

    asyncio.run(life())
    found = results(tmp_path / "logs")
    assert [result.difference for result in found.values()] == [None] * 4
    seen = sum((Counter(result.calls) for result in found.values()), Counter())
    assert {"FetchDone", "StoreDone"} <= set(seen)


def test_a_folder_that_cannot_be_written(checkpoint: Path, tmp_path: Path, shm: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    config = recorded(checkpoint, tmp_path / "file" / "logs")
    with pytest.raises(ConfigError, match=r"\[engine\] decision_log: .* cannot be written"):
        Pools(config, shm)
