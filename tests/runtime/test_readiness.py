"""Ready means that a request sent now starts, whatever is up, drains or is silent; a gateway that leaves says so."""

import asyncio
from itertools import product
from pathlib import Path

import pytest

from serving.errors import UnavailableError
from serving.ids import GatewayId
from serving.link import messages as m
from serving.runtime.live_backend import LiveBackend
from serving.runtime.metered_backend import MeteredBackend
from serving.runtime.traffic import BoardNews, TrafficMeter
from tests.runtime.harness import small_config
from tests.runtime.test_gateway_alone import Link, _end, job, linked

pytestmark = pytest.mark.asyncio

STATES = ("none", "up", "draining", "silent", "no word yet")


def place(backend: LiveBackend, pool: str, state: str) -> Link | None:
    """An instance of a pool in some state."""
    if state == "none":
        return None
    now = asyncio.get_running_loop().time()
    link = linked(backend, pool, heard_at=now - 60.0 if state == "silent" else now)
    if state == "no word yet":
        link.status = None  # type: ignore[assignment]
    elif state == "draining":
        link.status = m.Status(0, 0, 0, 100, draining=True, progress_age_s=0.0, tokens_per_s=0.0)
    return link


@pytest.mark.parametrize(("prefill", "decode"), list(product(STATES, STATES)))
async def test_ready_is_what_routing_says(prefill: str, decode: str) -> None:
    backend = LiveBackend(GatewayId("g"), "s", small_config(Path("/nowhere")), ["prefill", "decode"])
    links = [place(backend, "prefill", prefill), place(backend, "decode", decode)]
    ready = backend.ready()
    assert ready == ("up" in (prefill, decode))
    backend.submit(job(1))
    assert any(link is not None and link.sent for link in links) is ready
    _end(backend)


@pytest.mark.parametrize("asleep", [(), ("prefill",), ("decode",), ("prefill", "decode"), ("kvcache",)])
@pytest.mark.parametrize("role_wait_s", [0.0, 15.0])
@pytest.mark.parametrize("state", ["none", "up", "draining"])
async def test_a_system_that_sleeps_is_ready_where_a_request_wakes_it(
    state: str, role_wait_s: float, asleep: tuple[str, ...]
) -> None:
    config = small_config(Path("/nowhere"), gateway={"role_wait_s": role_wait_s})
    backend = LiveBackend(GatewayId("g"), "s", config, ["prefill", "decode"])
    metered = MeteredBackend(
        backend, TrafficMeter("g", 1.0, 1.0), {"prefill": 1, "decode": 1}, waits=config.gateway.role_wait_s > 0
    )
    link = place(backend, "prefill", state)
    assert metered.ready() is (state == "up"), "no board has said that a pool sleeps"
    metered.hear(BoardNews(dict.fromkeys(asleep, 0), asleep=asleep))
    ready = metered.ready()
    try:
        generation = metered.submit(job(1))
    except UnavailableError:
        assert not ready
    else:
        wakes = metered.starved() and not {"prefill", "decode"}.isdisjoint(asleep)
        assert ready is (wakes or bool(link and link.sent))
        assert not generation.closed
        _end(backend)


async def test_whoever_runs_or_waits_is_told_that_the_gateway_leaves() -> None:
    config = small_config(Path("/nowhere"), mode="aggregated", gateway={"max_running_sequences": 1})
    backend = LiveBackend(GatewayId("g"), "s", config, ["aggregated"])
    link = linked(backend, "aggregated")
    jobs = [backend.submit(job(1)) for _ in range(3)]
    assert (backend.counts()["running"], backend.counts()["queued"]) == (1, 2)
    backend.end_all("the server is shutting down")
    for generation in jobs:
        with pytest.raises(UnavailableError, match="shutting down"):
            await generation.next()
    assert [type(message) for message in link.sent] == [m.Add, m.Cancel], "nobody takes the place of who was ended"
    assert backend.counts() == {"running": 0, "queued": 0, "sequences": 0}
    _end(backend)
