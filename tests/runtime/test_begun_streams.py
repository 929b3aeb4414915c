"""A stream that has begun waits for the replacement of its instance as long as its own deadline, others not so long."""

from pathlib import Path
from typing import Any, cast

import pytest

from serving.errors import UnavailableError
from serving.ids import GatewayId
from serving.link import messages as m
from serving.runtime.live_backend import LiveBackend
from serving.runtime.live_generation import LiveGeneration
from tests.runtime.harness import small_config
from tests.runtime.test_gateway_alone import Clock, Link, _end, job, linked

pytestmark = pytest.mark.asyncio


def begin(backend: LiveBackend, link: Link) -> None:
    """The instance gives two tokens of its last order, and is lost."""
    add = link.sent[-1]
    assert isinstance(add, m.Add)
    tokens = m.Tokens(add.spec.sequence_id, 0, (7, 8), cached_tokens=0)
    backend._on_frame(cast(Any, link), m.Frame(1, (tokens,)))


def over(generation: LiveGeneration) -> bool:
    return generation.closed


def lose(backend: LiveBackend, link: Link) -> None:
    del backend.links._links[link.replica]
    backend._on_down(cast(Any, link), "gone")


async def test_it_outlasts_role_wait_s_while_a_replacement_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    config = small_config(Path("/nowhere"), mode="aggregated")
    backend = LiveBackend(GatewayId("g"), "s", config, ["aggregated"])
    clock = Clock(backend, monkeypatch)
    first = linked(backend, "aggregated")
    begun = backend.submit(job(1))
    begin(backend, first)
    fresh = backend.submit(job(1))
    lose(backend, first)
    for seconds in (1.0, config.gateway.role_wait_s + 2.0):
        clock.sweep_after(seconds)
    assert fresh.closed
    assert not over(begun)
    second = linked(backend, "aggregated")
    clock.sweep_after(config.gateway.role_wait_s + 40.0)
    (again,) = second.sent
    assert isinstance(again, m.Add)
    assert again.spec.output == (7, 8)
    _end(backend)


async def test_it_does_not_if_nobody_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    config = small_config(Path("/nowhere"), mode="aggregated")
    backend = LiveBackend(GatewayId("g"), "s", config, ["aggregated"])
    clock = Clock(backend, monkeypatch)
    link = linked(backend, "aggregated")
    begun = backend.submit(job(1))
    begin(backend, link)
    backend.targets = {"aggregated": 0}
    lose(backend, link)
    for seconds in (1.0, config.gateway.role_wait_s + 2.0):
        clock.sweep_after(seconds)
    assert over(begun)
    await begun.next()
    with pytest.raises(UnavailableError, match="no prefill instance came up"):
        await begun.next()
    _end(backend)


async def test_it_ends_at_its_own_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    config = small_config(Path("/nowhere"), mode="aggregated")
    backend = LiveBackend(GatewayId("g"), "s", config, ["aggregated"])
    clock = Clock(backend, monkeypatch)
    link = linked(backend, "aggregated")
    begun = backend.submit(job(1))
    begin(backend, link)
    lose(backend, link)
    clock.sweep_after(599.0)
    assert not over(begun)
    clock.sweep_after(601.0)
    assert over(begun)
    _end(backend)
