"""Gateways exchange their metrics over real sockets."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from functools import partial

import pytest

from serving.gateway.api.running_requests import RunningRequests
from serving.gateway.core.timeline import RequestTimes, TimelineShelf
from serving.gateway.live import gateway_peers
from serving.gateway.live.gateway_peers import PEER_CHANNEL, GatewayPeers, Numbers
from serving.gateway.live.timelines import SharedTimelines, wished
from serving.sockets.secrets import ClusterSecrets
from serving.telemetry.metrics import GatewayMetrics
from serving.wire.connection import Connection, connect_proving
from tests.sockets.ends import is_closed
from tests.telemetry.samples import by_engine, stats

pytestmark = pytest.mark.asyncio


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine responds late: only the tests of a deadline have a short one."""
    monkeypatch.setattr(gateway_peers, "DEADLINE_S", 60.0)


class Gateway:
    """One gateway's metrics with its peers."""

    def __init__(self, rank: int, secret: str = "s") -> None:
        self.name = f"gateway{rank}"
        self.metrics = GatewayMetrics("m", engine=str(rank), name=self.name)
        self.shelf = TimelineShelf(8)
        self.running = RunningRequests()
        numbers = self.metrics.numbers
        self.peers = GatewayPeers(self.name, secret, numbers, partial(wished, self.shelf), self.running)
        self.metrics.others = self.peers
        self.peers.start("127.0.0.1")
        assert self.peers.address is not None
        self.address = self.peers.address

    def took(self, tokens: int) -> None:
        self.metrics.request_started([tokens], 1, None, arrived=0.0).begun(0, 0.0, 0)

    async def shown(self) -> dict[str, float]:
        """Prompt tokens by gateway, as a scraper of this gateway sees them."""
        text = (await self.metrics.render_all()).decode()
        name = "vllm:prompt_tokens_total{"
        lines = [line for line in text.splitlines() if line.startswith(name)]
        return {line.split('engine="')[1].split('"')[0]: float(line.split()[-1]) for line in lines}


@contextlib.asynccontextmanager
async def gateways(count: int) -> AsyncIterator[list[Gateway]]:
    every = [Gateway(rank) for rank in range(count)]
    every[0].peers.set_peers({one.name: one.address for one in every})
    for one in every[1:]:
        one.peers.set_peers({every[0].name: every[0].address})
    try:
        yield every
    finally:
        for one in every:
            await one.peers.stop()


async def test_every_gateway_shows_all() -> None:
    async with gateways(3) as (one, two, three):
        for rank, gateway in enumerate((one, two, three)):
            gateway.took(10**rank)
            gateway.metrics.publish_instance(stats("d#a", steps_total=rank, told_s=float(rank)))
        every = {"0": 1.0, "1": 10.0, "2": 100.0}
        assert await one.shown() == every
        assert await two.shown() == {"0": 1.0, "1": 10.0}, "the board told it of one only"
        two.took(1)
        assert (await one.shown())["1"] == 11.0
        assert await one.metrics.load() == 4


async def test_who_is_asked_learns_of_who_asks() -> None:
    async with gateways(2) as (one, two):
        late = Gateway(2)
        try:
            late.took(5)
            late.peers.set_peers({one.name: one.address, two.name: two.address})
            assert set(await late.shown()) == {"0", "1", "2"}
            assert (await one.shown())["2"] == (await two.shown())["2"] == 5.0, "no board has told them"
        finally:
            await late.peers.stop()


async def test_requests_are_cancelled_in_every_gateway() -> None:
    """A tenant cancels its own only, under either id; an administrator any."""
    ended: list[str] = []
    async with gateways(2) as (one, two):
        with (
            one.running.entered("a", ("x", "mine"), lambda: ended.append("one")),
            two.running.entered("a", ("y", "mine"), lambda: ended.append("two")),
            two.running.entered("b", ("z",), lambda: ended.append("other")),
        ):
            assert await one.peers.cancel(("mine", "z", "none"), "a") == ["mine"]
            assert ended == ["one", "two"]
            assert await one.peers.cancel(("z",), None) == ["z"]
            assert ended[2:] == ["other"]
        assert await one.peers.cancel(("x", "y", "z", "mine"), None) == [], "they have ended"


async def test_one_that_does_not_answer_is_shown_as_it_was_and_costs_a_deadline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with gateways(2) as (one, two):
        two.took(7)
        assert (await one.shown())["1"] == 7.0
        monkeypatch.setattr(gateway_peers, "DEADLINE_S", 0.1)
        monkeypatch.setattr(two.peers, "_on_frame", lambda *_: None)  # as if it were frozen
        two.took(1)
        many = await asyncio.wait_for(asyncio.gather(*(one.shown() for _ in range(20))), 60.0)
        assert all(shown["1"] == 7.0 for shown in many)


async def test_one_that_has_ended_is_forgotten() -> None:
    async with gateways(2) as (one, two):
        two.took(7)
        assert set(await one.shown()) == {"0", "1"}
        await two.peers.stop()
        assert set(await one.shown()) == {"0"}


async def test_a_stranger_learns_nothing() -> None:
    async with gateways(1) as (one,):
        stranger = Gateway(1, secret="guess")
        try:
            stranger.peers.set_peers({one.name: one.address})
            assert set(await stranger.shown()) == {"1"}
            assert set(await one.shown()) == {"0"}
        finally:
            await stranger.peers.stop()


@pytest.mark.parametrize("sent", [b"\x7f\xff\xff\xff", b"\x00\x00\x00\x04abcd", b"\x00\x01\x00\x00" + b"x" * 70_000])
async def test_bytes_of_a_stranger_end_the_connection(sent: bytes) -> None:
    async with gateways(1) as (one,):
        with socket.create_connection(one.address) as link:
            link.settimeout(60.0)
            link.sendall(sent)
            assert await asyncio.to_thread(is_closed, link)


async def test_first_scrape_waits_for_the_board_but_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway_peers, "FIRST_REPLY_S", 0.05)
    alone = Gateway(0)
    try:
        assert set(await asyncio.wait_for(alone.shown(), 60.0)) == {"0"}
    finally:
        await alone.peers.stop()


async def test_numbers_that_overtake_each_other_do_not_run_backwards() -> None:
    async with gateways(2) as (one, two):
        two.took(1)
        old = two.metrics.numbers()
        two.took(1)
        assert (await one.shown())["1"] == 2.0
        done = asyncio.get_running_loop().create_future()
        late = Connection(lambda *_: done.set_result(None), lambda *_: None)
        await connect_proving(
            late,
            one.address,
            PEER_CHANNEL,
            "gateway",
            ClusterSecrets(("s",)),
            lambda: late.send(Numbers(old, *two.address)),
        )
        await asyncio.wait_for(done, 60.0)
        known = [numbers for numbers in one.peers._peers.values() if numbers.known is not None]
        assert [numbers.known.serial > old.serial for numbers in known if numbers.known is not None] == [True]
        late.close("done")


async def test_by_engine_is_what_scrapers_sum() -> None:
    """Sums over `engine` count each gateway once."""
    one = GatewayMetrics("m", engine="0")
    one.request_started([3], 1, None, arrived=0.0).begun(0, 0.0, 0)
    told = {(s, frozenset(labels.items())): v for f in one.numbers().families for s, labels, v in f.samples}
    assert sum(by_engine(told, "vllm:prompt_tokens_total").values()) == 3


def over(name: str, total_s: float, namespace: str = "default") -> RequestTimes:
    return RequestTimes(name, namespace, total_s, total_s, "stop", 1, (), 0, 0, "", names=(name,))


async def test_any_gateway_finds_the_time_lines_of_all() -> None:
    async with gateways(2) as (one, other):
        one.shelf.add(over("a", 1.0))
        other.shelf.add(over("b", 3.0))
        other.shelf.add(over("c", 2.0, "acme"))
        await one.shown()  # it is now known to the other
        for gateway in (one, other):
            timelines = SharedTimelines(gateway.shelf, gateway.peers)
            for name in "abc":
                found = await timelines.find(name, None)
                assert found is not None
                assert found.request_id == name
            assert await timelines.find("c", "default") is None
            assert await timelines.find("d", None) is None
            assert [times.request_id for times in await timelines.choose("slowest", 2, None)] == ["b", "c"]
            assert [times.request_id for times in await timelines.choose("newest", 9, "acme")] == ["c"]


async def test_a_gateway_that_has_ended_has_no_time_lines() -> None:
    async with gateways(2) as (one, other):
        one.shelf.add(over("a", 1.0))
        await other.peers.stop()
        timelines = SharedTimelines(one.shelf, one.peers)
        assert await timelines.find("b", None) is None
        assert [times.request_id for times in await timelines.choose("newest", 9, None)] == ["a"]


async def test_one_gateway_speaks_for_what_all_see() -> None:
    async with gateways(2) as (one, other):
        assert await one.peers.first(one.name)
        assert not await other.peers.first(other.name)
        other.peers.set_peers({})
        assert await other.peers.first(other.name), "the first one is not there any more"
