"""A decode instance of two ranks: gateways reach each rank, its shell and its ranks may die, and it leaves no
leftovers. The prefill instance has an attention rank and an expert rank.
"""

import asyncio
import json
import os
import re
import signal
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from serving.tools.replay import replay
from tests.e2e.scaled import Scaled, asks, settled
from tests.e2e.server import SHARED_MEMORY, STOP_S, wait_for
from tests.e2e.streams import Streams, order, resumptions
from tests.e2e.topology import small
from tests.live.workload import GREEDY, Ask, Reference, varied_asks
from tests.virtual.core.live_scenes import group_resized, rank_lost
from tests.virtual.core.outcome import Seen

pytestmark = pytest.mark.slow

ENGINE = """[engine]
decision_log = "logs"
drain_s = 0.5"""
SETTINGS = """
[experts]
redundant = 1
policy = "none"
[autoscaler]
policy = "requests"
requests_per_instance = 1000
decode_step_npus = 1
min_decode_npus = 2
max_decode_npus = 2
[chaos]
enabled = true
least_step_s = 0.01
"""
"""Slow steps, so that streams run when a process dies. The policy targets two ranks, whatever was set by hand."""
LENGTH = 300
"""Tokens of a stream: 3 s."""
STREAMS = 4


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of decision logs."""
    return tmp_path_factory.mktemp("config") / "logs"


@pytest.fixture(scope="module")
def server(logs: Path, checkpoint: Path) -> Iterator[Scaled]:
    config = small(logs.parent, checkpoint, prefill=1, decode=1)
    text = config.read_text().replace("[decode]\nreplicas = 1\nnpus_per_instance = 2", "[decode]\nreplicas = 1\nep = 2")
    assert "ep = 2" in text
    text = text.replace("ep = 2", "ep = 2\nnpus_per_instance = 1").replace("[engine]", ENGINE)
    apart = "attention_ranks = 1\nexpert_ranks = 1\nnpus_per_instance = 1"
    text = text.replace("[prefill]\nreplicas = 1\nnpus_per_instance = 2", f"[prefill]\nreplicas = 1\n{apart}")
    assert apart in text
    config.write_text(text + SETTINGS)
    with Scaled(config) as running:
        session = running.session
        yield running
        took = running.interrupt()
        assert running.process.returncode == 0
        running.assert_nothing_left()
        assert not list(SHARED_MEMORY.glob(f"cloudmatrix-ub-{session}-*"))
        assert running.err == ""
        assert took < STOP_S


def ranks(server: Scaled) -> dict[str, int]:
    """Processes of the decode pool's serving ranks, by name."""
    return {row["replica"]: row["pid"] for row in server.replicas("decode") if row["state"] == "serving"}


def shells(server: Scaled) -> set[int]:
    """Processes of the shells, as reported by the ranks."""
    return {row["shell_pid"] for row in server.replicas("decode")}


def kill_under_streams(server: Scaled, reference: Reference, seed: int, pid: int) -> Seen:
    """Kill a process under streams: all go on to their right ends. Returns: what the clients got."""
    streams, before = Streams(server, asks(seed, STREAMS, LENGTH)), resumptions(server)

    async def scene() -> None:
        running = await streams.start()
        os.kill(pid, signal.SIGKILL)
        await running
        assert all(stream.follows(reference) for stream in streams.streams)

    asyncio.run(scene())
    return streams.seen(resumptions(server) - before)


def test_outputs_are_token_exact_and_both_ranks_work(server: Scaled, reference: Reference) -> None:
    some = [Ask(ask.prompt, GREEDY, ask.n) for ask in varied_asks(block_tokens=16, step_tokens=128)[:24]]

    wait_for(lambda: len(server.replicas("decode")) == 2, "the gateway reaches both ranks", state=server.cluster)

    async def ask_all() -> list[object]:
        return await asyncio.gather(*(asyncio.to_thread(server.post, "/v1/completions", order(ask)) for ask in some))

    for ask, answer in zip(some, asyncio.run(ask_all()), strict=True):
        assert isinstance(answer, dict)
        assert [choice["token_ids"] for choice in answer["choices"]] == reference.outputs(ask)
    server.wait_idle()
    first, second = server.replicas("decode")
    assert (first["rank"], second["rank"], first["ranks"]) == (0, 1, 2)
    assert first["group"] == second["group"]
    assert first["handoffs_in_total"] > 0
    assert second["handoffs_in_total"] > 0
    assert first["npus"] != second["npus"]
    shown = server.command("status", "--url", server.url).stdout
    assert "decode 1/1" in shown
    assert str(second["pid"]) in shown
    assert "of 2 compute together" in server.command("experts", "--url", server.url).stdout


def test_metrics_of_the_ranks_and_their_group(server: Scaled) -> None:
    def told() -> bool:
        """Whether all counters of the exchange are reported, which happens once a second."""
        found = {"exchange_seconds_total": 0.0, "exchange_wait_seconds_total": 0.0, "exchange_bytes_total": 0.0}
        for line in server.get("/metrics").splitlines():
            name = line.partition("{")[0].removeprefix("cloudmatrix:")
            if name in found:
                found[name] += float(line.rpartition(" ")[2])
        return all(found.values())

    wait_for(told, "bytes and time of the exchange show in the metrics")
    balanced = [line for line in server.get("/metrics").splitlines() if "expert_balancedness{" in line]
    assert any('layer="mean"' in line and 0 < float(line.rpartition(" ")[2]) <= 1 for line in balanced)
    groups = json.loads(server.get("/api/experts", **server.dashboard))["groups"]
    (group,) = [one for one in groups if one["pool"] == "decode"]
    assert (group["pool"], group["members"], group["ranks_total"]) == ("decode", [0, 1], 2)
    assert group["exchange"]["bytes"][0][1] > 0 < group["exchange"]["bytes"][1][0]
    assert {one["state"] for one in group["ranks"]} == {"serving"}
    assert "<title>Experts</title>" in server.get("/experts", url=server.dashboard["url"])
    shown = server.command("experts", "ranks", "--url", server.url).stdout
    assert re.search(r"\d%\s+r[01]: \d", shown), shown


def test_experts_move_under_streams(server: Scaled, reference: Reference) -> None:
    """An operator's copy of an expert, a rebalance, and a refused command: every token is unchanged."""
    group = group_of(server)
    layer, wanted = 0, group["ranks"][0]["held"][0][0]
    there = group["ranks"][1]["held"][0]
    assert wanted not in there

    def arrived() -> bool:
        group = group_of(server)
        return wanted in group["ranks"][1]["held"][layer]

    def same_map() -> bool:
        """Each rank reports its map once a second, on its own schedule."""
        group = group_of(server)
        return len({one["map_version"] for one in group["ranks"]}) == 1

    async def scene() -> None:
        streams = Streams(server, asks(5, 4, LENGTH))
        running = await streams.start()
        order = await asyncio.to_thread(server.command, "experts", "move", str(layer), str(wanted), "1", *at(server))
        assert order.returncode == 0, order.stderr
        await asyncio.to_thread(
            wait_for, lambda: outcomes(server)[:1] == ["done"], "it has moved", state=server.experts
        )
        await asyncio.to_thread(wait_for, arrived, "its new rank tells of it", state=server.experts)
        order = await asyncio.to_thread(server.command, "experts", "rebalance", "--policy", "static", *at(server))
        assert order.returncode == 0, order.stderr
        await running
        assert all(stream.follows(reference) for stream in streams.streams)

    asyncio.run(scene())
    wait_for(lambda: "running" not in outcomes(server), "all moves have ended", state=server.experts)
    wait_for(same_map, "all ranks have the newest map", state=server.experts)
    group = group_of(server)
    assert {one["reason"] for one in group["moves"]} >= {"operator"}
    assert group["moves"][-1]["expert"] == wanted
    refused = server.command("experts", "move", "0", "99", "1", *at(server))
    assert (refused.returncode, "experts 0 to" in refused.stderr) == (2, True), refused.stderr
    assert "operator" in server.command("experts", "moves", "--url", server.url).stdout


def at(server: Scaled) -> tuple[str, ...]:
    """Flags of commands about the experts of the decode group."""
    return "--url", server.url, "--group", group_of(server)["group"]


def group_of(server: Scaled, pool: str = "decode") -> dict[str, Any]:
    """The only group of a pool."""
    (group,) = [one for one in server.experts()["groups"] if one["pool"] == pool]
    return group


def outcomes(server: Scaled) -> list[str]:
    """Outcomes of moves, the latest first."""
    group = group_of(server)
    return [one["outcome"] for one in group["rebalances"]]


def test_the_next_shell_takes_the_ranks_over(server: Scaled, reference: Reference) -> None:
    before, (shell,) = ranks(server), shells(server)
    assert kill_under_streams(server, reference, 1, shell) == Seen(STREAMS, 0, 0, STREAMS * LENGTH)
    wait_for(lambda: len(shells(server) - {shell}) == 1, "another shell holds both", state=server.cluster)
    settled(server, "decode", 1)
    wait_for(lambda: ranks(server) == before, "the same processes, under their names", state=server.cluster)


def test_a_rank_that_is_killed_is_replaced(server: Scaled, reference: Reference) -> None:
    """Its peer computes all experts until it is back."""
    before = ranks(server)
    lost, kept = sorted(before)
    live = kill_under_streams(server, reference, 2, before[lost])
    assert live == rank_lost(STREAMS, LENGTH), "in virtual time, too"
    wait_for(lambda: ranks(server).get(lost, before[lost]) != before[lost], "it is back", state=server.cluster)
    wait_for(lambda: len(ranks(server)) == 2, "the group is whole", state=server.cluster)
    assert ranks(server)[kept] == before[kept]
    kill_under_streams(server, reference, 4, before[kept])
    wait_for(lambda: ranks(server).get(kept, before[kept]) != before[kept], "so is the other one", state=server.cluster)
    events = server.state()["events"]
    assert ("died", lost.partition("#")[2]) in {(event["kind"], event["replica"]) for event in events}
    groups = json.loads(server.get("/api/experts", **server.dashboard))["groups"]
    shown = {(one["kind"], one["replica"]) for group in groups for one in group["events"] if group["pool"] == "decode"}
    assert {("died", lost.partition("#")[2]), ("replaced", lost.partition("#")[2])} <= shown, "the experts page"
    server.wait_idle()


def test_an_expert_rank_that_is_killed_is_replaced(server: Scaled, reference: Reference) -> None:
    """Prompts wait for the next one, and its side grows and shrinks while they are computed."""
    before = {row["role"]: row for row in server.replicas("prefill")}
    assert before["attention"]["kv_blocks_total"] > 0
    assert before["experts"]["kv_blocks_total"] is None

    def computed() -> list[str]:
        return [one["role"] for one in group_of(server, "prefill")["ranks"] if one["rows_sent"]]

    async def scene() -> None:
        os.kill(before["experts"]["pid"], signal.SIGKILL)
        for seed, more in ((9, "2"), (10, "1")):
            streams = Streams(server, asks(seed, STREAMS, 30))
            running = await streams.start()
            told = await asyncio.to_thread(
                server.command, "experts", "resize", "prefill", "--expert-ranks", more, "--wait", "--url", server.url
            )
            assert told.returncode == 0, told.stderr
            await running
            assert all(stream.follows(reference) for stream in streams.streams)

    asyncio.run(scene())
    after = {row["role"]: row["pid"] for row in server.replicas("prefill")}
    assert after["attention"] == before["attention"]["pid"]
    assert after["experts"] != before["experts"]["pid"]
    wait_for(lambda: computed() == ["attention"], "attention ranks count rows", state=server.experts)
    name = before["attention"]["replica"]
    refused = server.command("experts", "switch", name, "experts", "--url", server.url)
    assert (refused.returncode, "the only attention rank" in refused.stderr) == (2, True), refused.stderr


def test_a_group_grows_and_shrinks_under_streams(server: Scaled, reference: Reference) -> None:
    """2 -> 3 ranks by hand, -> 2 by the policy once it may; and there is a limit to it."""
    before = ranks(server)

    async def scene() -> None:
        streams = Streams(server, asks(5, 6, 2 * LENGTH))
        running = await streams.start()
        grown = await asyncio.to_thread(resized, server, 3)
        assert "compute together after" in grown.stdout, grown.stderr
        await asyncio.to_thread(wait_for, lambda: len(ranks(server)) == 3, "the gateway knows the new rank", 30.0)
        more = Streams(server, asks(6, 6, LENGTH))
        both = await more.start()
        await asyncio.to_thread(wait_for, lambda: busy(server), "the new rank has streams")
        freed = await asyncio.to_thread(server.command, "scale", "decode", "1", "--hold", "0")
        assert freed.returncode == 0, freed.stderr
        await asyncio.gather(running, both)
        assert all(stream.follows(reference) for stream in (*streams.streams, *more.streams))

    counted = resumptions(server)
    asyncio.run(scene())
    assert resumptions(server) - counted == group_resized([2 * LENGTH] * 6, [LENGTH] * 6).resumed == 0
    wait_for(lambda: rank_processes(server) == 2, "the third rank has ended", state=server.processes)
    settled(server, "decode", 1)
    assert ranks(server) == before
    assert server.kinds("decode")[0] == ("forecast", "autoscaler")
    full = resized(server, 8)
    assert full.returncode != 0
    assert "do not fit" in full.stderr
    lost = {event["replica"] for event in server.state()["events"] if event["kind"] in ("died", "frozen")}
    assert not {name for name in lost if name.endswith(".r2")}, "a resize is no loss"
    server.wait_idle()


def test_a_rank_is_drained_and_replaced_under_streams(server: Scaled, reference: Reference) -> None:
    before, seen = ranks(server), max((event["id"] for event in server.state()["events"]), default=0)
    kept, drained = sorted(before)

    async def scene() -> None:
        streams = Streams(server, asks(7, 4, LENGTH))
        running = await streams.start()
        told = await asyncio.to_thread(server.command, "experts", "drain", drained, "--wait", "--url", server.url)
        assert told.returncode == 0, told.stderr
        await running
        assert all(stream.follows(reference) for stream in streams.streams)

    asyncio.run(scene())
    wait_for(lambda: ranks(server).get(drained, before[drained]) != before[drained], "it is new", state=server.cluster)
    assert ranks(server)[kept] == before[kept]
    assert not [event for event in server.state()["events"] if event["id"] > seen and event["kind"] == "died"]
    settled(server, "decode", 1)


def resized(server: Scaled, size: int) -> "subprocess.CompletedProcess[str]":
    return server.command("experts", "resize", "decode", str(size), "--wait", "--url", server.url)


def busy(server: Scaled) -> bool:
    """Whether the third rank of the group has sequences."""
    return any(row["rank"] == 2 and row["running"] for row in server.replicas("decode"))


def test_decisions_of_a_kill_a_resize_and_a_drain_replay_identically(logs: Path) -> None:
    """The tests above did all three; files of killed processes have no end, those of running ones none yet."""
    results = [replay(path) for path in sorted(logs.iterdir())]
    assert [(result.name, result.difference) for result in results if not result.identical] == []
    lives = Counter(result.name.rpartition(".")[2] for result in results if result.name.startswith("decode"))
    assert lives == {"r0": 2, "r1": 3, "r2": 1}, "two killed, the second one also drained, a third one for a while"
    calls = sum((Counter(result.calls) for result in results), Counter[str]())
    assert {"Submit", "InstanceDown", "Adopt", "Drain"} <= set(calls)


@pytest.mark.nightly("tests/e2e/test_expert_parallel.py::test_a_group_grows_and_shrinks_under_streams")
def test_groups_come_and_go(server: Scaled, reference: Reference) -> None:
    assert server.command("scale", "decode", "2").returncode == 0
    wait_for(lambda: len(ranks(server)) == 4, "two groups of two", state=server.cluster)
    settled(server, "decode", 2)
    wait_for(lambda: shown_ranks(server) == [2, 2], "the page shows the ranks of both", state=server.state)
    assert server.pool("decode")["npus"] == 4

    async def scene() -> None:
        streams = Streams(server, asks(3, 8, LENGTH))
        running = await streams.start()
        scaled = await asyncio.to_thread(server.command, "scale", "decode", "1")
        assert scaled.returncode == 0
        await running
        assert all(stream.follows(reference) for stream in streams.streams)

    asyncio.run(scene())
    settled(server, "decode", 1)
    wait_for(lambda: len(ranks(server)) == 2, "one group has left", state=server.cluster)
    wait_for(lambda: rank_processes(server) == 2, "its processes have ended", state=server.processes)
    server.wait_idle()
    ask = Ask((5, 6, 7), replace(GREEDY, max_tokens=3))
    answer = server.post("/v1/completions", order(ask))
    assert [choice["token_ids"] for choice in answer["choices"]] == reference.outputs(ask)


def shown_ranks(server: Scaled) -> list[int]:
    """Number of ranks that the page shows for each group."""
    return [len(replica["ranks"]) for replica in server.pool("decode")["replicas"]]


def rank_processes(server: Scaled) -> int:
    """Ranks of decode groups; the prefill group has two."""
    return sum("RankActor" in title for title in server.processes().values()) - 2
