"""Pools follow their load, automatically and by hand: from zero, under load, back, and through failures.

At the end the launcher is killed, and its files are removed.
"""

import asyncio
import json
import time
import urllib.error
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.scaled import Scaled, asks, settled
from tests.e2e.server import wait_for
from tests.e2e.streams import Streams, resumptions
from tests.e2e.topology import small
from tests.live.workload import Reference
from tests.virtual.core.live_scenes import burst

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

SETTINGS = """
[gateway]
role_wait_s = 120.0

[slo]
ttft_s = 0.5

[autoscaler]
policy = "slo"
period_s = 0.3
min_prefill = 0
min_decode = 0
max_prefill = 1
max_decode = 3
hold_s = 2.0
idle_to_zero_s = 3.0
manual_hold_s = 600.0
"""
NARROW = "max_sequences = 2\n"
"""Of a decode instance, so that a few streams are a load."""
GONE_S = 50.0
"""Time until all remains of a killed launcher are removed: ten seconds, more while another system starts."""
LOAD_S = 150.0
"""How long decode is kept under load at most, until it has grown."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, checkpoint: Path) -> Iterator[Scaled]:
    config = small(tmp_path_factory.mktemp("config"), checkpoint, prefill=0, decode=0)
    config.write_text(config.read_text().replace("[decode]\n", f"[decode]\n{NARROW}") + SETTINGS)
    with Scaled(config) as running:
        yield running


def test_the_first_request_wakes_pools_that_are_empty(server: Scaled, reference: Reference) -> None:
    assert server.pool("prefill")["target"] == server.pool("decode")["target"] == 0
    begun = time.monotonic()
    streams = Streams(server, asks(1, 3, 20))
    asyncio.run(streams.run())
    print(f"three answers from zero after {time.monotonic() - begun:.1f} s")
    assert all(stream.follows(reference) for stream in streams.streams)
    assert ("wake", "autoscaler") in server.kinds("prefill")
    assert ("wake", "autoscaler") in server.kinds("decode")


def test_pools_without_requests_go_to_sleep(server: Scaled) -> None:
    settled(server, "prefill", 0)
    settled(server, "decode", 0)
    assert server.kinds("decode")[0] == ("zero", "autoscaler")


def test_decode_follows_its_load_and_nothing_is_lost(server: Scaled, reference: Reference) -> None:
    most = 0
    simulated, decided = burst(40, 600)

    async def scene() -> None:
        nonlocal most
        streams = Streams(server, 10 * asks(2, 4, 600))
        running = asyncio.create_task(streams.run())
        while not running.done():
            most = max(most, (await asyncio.to_thread(server.pool, "decode"))["running"])
            await asyncio.sleep(0.1)
        await running
        assert all(stream.follows(reference) for stream in streams.streams)
        assert streams.seen(resumptions(server)) == simulated, "in virtual time, too"

    begun = time.monotonic()
    while most < 2 and time.monotonic() < begun + LOAD_S:  # one lot may end before a second instance has started
        asyncio.run(scene())
    assert most >= 2, server.kinds("decode")
    settled(server, "decode", 0)
    kinds = [kind for kind, _ in server.kinds("decode")]
    assert [kinds[0]] == [kind for kind, _ in decided[-1:]] == ["zero"]


def test_a_target_by_hand_stands_against_the_policy_and_ends(server: Scaled) -> None:
    done = server.command("scale", "decode", "2", "--wait")
    assert (done.returncode, done.stderr) == (0, "")
    assert "held for 10 min" in done.stdout
    time.sleep(5.0)  # without requests: the policy requests no instance
    row = server.pool("decode")
    assert (row["target"], row["running"], row["hold"]["by"]) == (2, 2, "cli")
    wait_for(lambda: "decode 2/2" in server.command("status", "--url", server.url).stdout, "status tells the target")
    done = server.command("scale", "decode", "2", "--hold", "2s")
    assert "held for 2 s" in done.stdout
    settled(server, "decode", 0)
    listed = server.command("decisions", "--pool", "decode").stdout.splitlines()
    last = [line for line in listed if "->" in line][-1]  # events of drained instances follow it
    assert "2 -> 0" in last
    assert "zero" in last
    wait_for(lambda: " left " in server.command("decisions", "--pool", "decode").stdout, "who left is told")


def test_rays_own_route_takes_the_same_path(server: Scaled) -> None:
    path = "/api/v1/applications/cloudmatrix/deployments/decode/scale"
    with pytest.raises(urllib.error.HTTPError) as refused:
        server.post(path, {"target_num_replicas": 9}, **server.dashboard)
    with refused.value as error:
        told = json.load(error)
    assert (refused.value.code, told["kind"], told["fits"]) == (409, "no_room", 4)
    assert isinstance(told["error"], str)
    assert "9 replicas of decode do not fit, 4 would" in server.command("scale", "decode", "9").stderr
    assert server.pool("decode")["target"] == 0
    server.post(path, {"target_num_replicas": 1}, **server.dashboard)
    settled(server, "decode", 1)
    assert server.pool("decode")["hold"]["by"] == "rest"
    assert server.kinds("decode")[0] == ("held", "rest")


def test_holds_and_ledger_outlive_autoscaler_and_board(server: Scaled, reference: Reference) -> None:
    before = server.kinds("decode")
    server.kill("ray::ServeReplica:cloudmatrix:autoscaler")
    server.kill("ray::ScalingBoardActor")

    def back() -> bool:
        try:
            return bool(server.state()["autoscaler"]["alive"])
        except urllib.error.HTTPError as error:
            with error:
                return False

    wait_for(lambda: not back(), "somebody is missed")
    wait_for(back, "the autoscaler looks again")
    assert server.kinds("decode") == before
    assert server.pool("decode")["hold"]["by"] == "rest"
    streams = Streams(server, asks(3, 3, 20))
    asyncio.run(streams.run())
    assert all(stream.follows(reference) for stream in streams.streams)
    assert server.command("scale", "decode", "1", "--hold", "0").returncode == 0
    settled(server, "decode", 0)


def test_what_a_killed_launcher_leaves_is_removed(server: Scaled) -> None:
    """The small cleanup process removes them within seconds."""
    settled(server, "decode", 0)
    assert server.command("scale", "decode", "1", "--wait").returncode == 0
    left = server.kill_launcher()
    assert len(left) >= 1, "one for each replica"
    begun = time.monotonic()
    wait_for(lambda: not any(segment.exists() for segment in left), "its memory is free", 60)
    wait_for(lambda: not server.processes(), "all has ended", 60, server.processes)
    assert time.monotonic() - begun < GONE_S
    assert not server.segments()
