"""Ready means that a request sent now starts, with any instances up, draining or silent."""

from itertools import product
from pathlib import Path
from types import SimpleNamespace

import pytest
from msgspec.structs import replace

from serving.errors import UnavailableError
from serving.gateway.live.backend import LiveBackend
from serving.gateway.live.traffic_report import MeteredBackend
from serving.ids import GatewayId, NodeId, ReplicaId
from serving.values.traffic import BoardReply, TrafficMeter
from serving.wire import messages as m
from tests.gateway.core.bench import IDLE, GatewayBench, job
from tests.live import by_hand
from tests.live.harness import small_config

STATES = ("none", "up", "draining", "silent", "no word yet")


def place(bench: GatewayBench, pool: str, state: str) -> None:
    """An instance of a pool in some state."""
    now = bench.now
    if state == "silent":
        bench.now -= 60.0
    if state != "none":
        bench.up(pool, status=None if state == "no word yet" else replace(IDLE, draining=state == "draining"))
    bench.now = now


@pytest.mark.parametrize(("prefill", "decode"), list(product(STATES, STATES)))
def test_ready_is_what_routing_says(prefill: str, decode: str) -> None:
    bench = GatewayBench()
    place(bench, "prefill", prefill)
    place(bench, "decode", decode)
    ready = bench.core.open(bench.now)
    assert ready == ("up" in (prefill, decode))
    bench.submit(job())
    assert any(bench.sent.values()) is ready


@pytest.mark.asyncio
@pytest.mark.parametrize("asleep", [(), ("prefill",), ("decode",), ("prefill", "decode"), ("kvcache",)])
@pytest.mark.parametrize("role_wait_s", [0.0, 15.0])
@pytest.mark.parametrize("state", ["none", "up", "draining"])
async def test_a_system_that_sleeps_is_ready_where_a_request_wakes_it(
    state: str, role_wait_s: float, asleep: tuple[str, ...]
) -> None:
    config = small_config(Path("/nowhere"), gateway={"role_wait_s": role_wait_s}, autoscaler={"policy": "slo"})
    backend = LiveBackend(GatewayId("g"), "s", config, ["prefill", "decode"])
    metered = MeteredBackend(
        backend, TrafficMeter("g", 1.0, 1.0), {"prefill": 1, "decode": 1}, waits=config.gateway.role_wait_s > 0
    )
    replica = ReplicaId("prefill#0")
    if state != "none":
        welcome = m.InstanceWelcome(replica, "prefill", NodeId("n"), "l", 16, 100, 1024)
        link = SimpleNamespace(
            replica=replica,
            incarnation="first",
            status=None,
            received_at=0.0,
            up=True,
            welcome=welcome,
            send=lambda order: True,
            close=lambda why: None,
        )
        by_hand.link_up(backend, replica, link)
        by_hand.arrive(backend, link, replace(IDLE, draining=state == "draining"))
    assert metered.ready() is (state == "up"), "no board has said that a pool sleeps"
    metered.on_reply(BoardReply(dict.fromkeys(asleep, 0), asleep=asleep))
    ready = metered.ready()
    try:
        generation = metered.submit(job())
    except UnavailableError:
        assert not ready
    else:
        wakes = metered.starved() and not {"prefill", "decode"}.isdisjoint(asleep)
        assert ready is (wakes or state == "up")
        assert not generation.closed
    finally:
        backend.close()
