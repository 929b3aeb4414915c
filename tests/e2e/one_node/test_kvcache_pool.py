"""The pool of memory servers from a user's view: start, growth, shrinking, loss of a server or of its controller, end.

Each test leaves one memory server running, with space for the blocks of the next test.
"""

import os
import random
import signal
import time
from typing import Any

import pytest

from hardware.ub.segment import UbSegment
from hardware.units import MIB
from serving.kvpool.core.roster import FOUNDING_S
from tests.e2e.one_node.case import RAMP_S, UB_MIB, segments
from tests.e2e.server import Server, wait_for
from tests.live.workload import tokens

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def servers(server: Server) -> list[dict[str, Any]]:
    """Memory servers listed by the gateway."""
    listed: list[dict[str, Any]] = server.cluster()["kvcache"]["servers"]
    return listed


def shares(server: Server) -> dict[str, float]:
    """Weight in the ring of each server."""
    return {one["name"]: one["weight"] for one in servers(server)}


def entries(server: Server) -> int:
    return sum(one["entries"] for one in servers(server))


def replicas(server: Server) -> list[int]:
    """Process ids of memory servers, including starting and draining ones."""
    return [pid for pid, title in server.processes().items() if title == "ray::ServeReplica:cloudmatrix:kvcache"]


def scale(server: Server, to: int) -> None:
    """Request another number of memory servers from Ray's dashboard."""
    server.post(
        "/api/v1/applications/cloudmatrix/deployments/kvcache/scale",
        {"target_num_replicas": to},
        url=server.printed("Ray dashboard"),
        headers={"Authorization": f"Bearer {server.printed('dashboard token')}"},
    )


def fill(server: Server, seed: int) -> None:
    """Send new prompts; their blocks reach the pool in the background."""
    rng, before = random.Random(seed), entries(server)

    def more() -> bool:
        # Instances learn of a server at most half a second after the gateway: until then they store nothing.
        server.post("/v1/completions", {"model": "tiny", "prompt": list(tokens(rng, 200)), "max_tokens": 2})
        return entries(server) >= before + 40

    wait_for(more, "blocks are in the pool", state=lambda: servers(server))


def settled(server: Server) -> int:
    """Entries, once two listings from separate announcements agree."""
    before = -1
    while before != (before := entries(server)):
        time.sleep(2.5)
    return before


def test_a_memory_server_takes_exactly_what_it_says(server: Server) -> None:
    assert "KV-cache pool    1 memory server, 8 MiB + 32 MiB on disk" in server.out
    (path,) = segments(server.session)
    assert path.stat().st_mode & 0o777 == 0o600
    segment = UbSegment.attach(path)
    try:
        assert segment.capacity_bytes == UB_MIB * MIB
        assert segment.used_bytes == UB_MIB * MIB, "one region over all of it"
    finally:
        segment.close()
    (only,) = servers(server)
    assert (only["name"], only["state"], only["weight"]) == ("kvcache-0-0", "active", 1.0)
    assert only["dram"]["capacity_bytes"] == UB_MIB * MIB
    assert only["ssd"]["capacity_bytes"] == 32 * MIB


def test_the_pool_grows_and_shrinks_and_keeps_what_it_holds(server: Server) -> None:
    fill(server, 1)
    founding_s = min(FOUNDING_S, RAMP_S)  # after that a server counts as a newcomer
    time.sleep(max(0.0, founding_s - servers(server)[0]["uptime_s"]))
    held = settled(server)
    scale(server, 2)
    wait_for(lambda: len(servers(server)) == 2, "the second server is listed", state=lambda: servers(server))
    newcomer = shares(server)["kvcache-0-1"]
    assert newcomer < 1, "it takes its share step by step"
    assert len(segments(server.session)) == 2
    wait_for(lambda: shares(server) == {"kvcache-0-0": 1, "kvcache-0-1": 1}, "it has its share")
    wait_for(lambda: all(one["entries"] for one in servers(server)), "entries move", state=lambda: servers(server))
    assert settled(server) == held, "moved, not copied, not lost"
    scale(server, 1)
    wait_for(lambda: len(servers(server)) == 1, "one has left", state=lambda: servers(server))
    wait_for(lambda: len(segments(server.session)) == 1, "its memory is given back")
    wait_for(lambda: len(replicas(server)) == 1, "its process has ended")
    assert settled(server) == held, "it handed over all it had"


def test_a_killed_server_comes_back_under_its_name_with_what_was_on_disk(server: Server) -> None:
    fill(server, 2)
    held = settled(server)
    (before,) = servers(server)
    wait_for(lambda: servers(server)[0]["ssd"]["used_bytes"] > 0, "written through")
    (segment,), (pid,) = segments(server.session), replicas(server)
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: replicas(server) not in ([], [pid]), "there is another process")

    def back() -> bool:
        listed = servers(server)
        return [one["name"] for one in listed] == [before["name"]] and listed[0]["uptime_s"] < before["uptime_s"]

    wait_for(back, "it is listed", state=lambda: servers(server))
    assert not segment.exists()
    assert len(segments(server.session)) == 1
    assert settled(server) == held
    assert shares(server) == {before["name"]: 1}, "a replacement owns its predecessor's keys at once"
    fill(server, 4)


def test_the_death_of_the_controller_is_not_noticed(server: Server) -> None:
    def controllers() -> list[int]:
        return [pid for pid, title in server.processes().items() if title == "ray::PoolControlActor"]

    before = shares(server)
    (pid,) = controllers()
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: controllers() not in ([], [pid]), "there is another one", state=server.processes)
    begun, (first,) = time.monotonic(), servers(server)

    def followed() -> bool:
        (one,) = servers(server)
        assert {one["name"]: one["weight"]} == before
        # Longer than a listing lives without announcements.
        return time.monotonic() - begun > 6 and bool(one["uptime_s"] > first["uptime_s"] + 2)

    wait_for(followed, "the view is followed again", state=lambda: servers(server))


def test_requests_are_answered_without_any_memory_server(server: Server) -> None:
    scale(server, 0)
    wait_for(lambda: not servers(server), "nobody is listed", state=lambda: servers(server))
    # Sampled tokens: 9 of 600 such answers of this random model end by themselves.
    asked = {"model": "tiny", "prompt": "Once upon a time", "max_tokens": 3, "ignore_eos": True}
    answer = server.post("/v1/completions", asked)
    assert answer["usage"]["completion_tokens"] == 3
    wait_for(lambda: not segments(server.session), "its memory is given back")
    scale(server, 1)
    wait_for(lambda: len(servers(server)) == 1, "it is back")
    fill(server, 3)
