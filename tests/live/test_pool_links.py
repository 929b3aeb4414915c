"""A gateway's links: created from listings, ended for any reason, never stuck."""

import asyncio
import time
from functools import partial

import pytest
from msgspec.structs import replace

from serving.errors import LinkError
from serving.gateway.live import pool_links
from serving.gateway.live.pool_links import InstanceLink, LinkEvents, PoolLinks
from serving.ids import GatewayId, NodeId, ReplicaId, SequenceId
from serving.values.instances import CRASHED_AGE_S, Status
from serving.values.orders import Add, Release
from serving.values.sequence import SamplingParams, SequenceSpec
from serving.wire import messages as m
from tests.live.harness import SECRET, Member, until
from tests.live.wire import STATUS, WELCOME, RawInstance, welcome

pytestmark = pytest.mark.asyncio

REPLICA = WELCOME.replica


class Gateway:
    """Links, and their reports."""

    def __init__(self, silence_s: float = 3.0) -> None:
        self.ups: list[InstanceLink] = []
        self.downs: list[str] = []
        self.frames: list[m.Frame] = []
        self.reports: list[Status] = []
        events = LinkEvents(
            lambda _, frame: self.frames.append(frame),
            lambda _, status: self.reports.append(status),
            self.ups.append,
            lambda _, why: self.downs.append(why),
        )
        self.links = PoolLinks(GatewayId("gateway"), SECRET, events, silence_s)


def member(port: int, incarnation: str = "first") -> Member:
    return Member(REPLICA, "decode", NodeId("node"), "127.0.0.1", port, incarnation)


async def test_a_listed_instance_gets_one_link() -> None:
    gateway = Gateway()
    async with RawInstance(welcome) as instance:
        for _ in range(3):
            gateway.links.update([member(instance.port)])
        await until(lambda: gateway.links.link(REPLICA) is not None, "the link is up")
        gateway.links.update([member(instance.port)])
        assert (instance.connections, len(gateway.ups)) == (1, 1)
        link = gateway.links.up()[0]
        assert link.welcome == WELCOME
        gateway.links.update([])
        assert gateway.links.link(REPLICA) is link, "an open link outlives its listing"
        instance.writers[0].write(m.encode(m.Frame(1, ())))
        await until(lambda: gateway.frames == [m.Frame(1, ())], "frames arrive")
        gateway.links.close()
        await until(lambda: gateway.downs == ["the gateway stops"], "the end is told once")


async def test_a_restarted_instance_gets_a_new_link() -> None:
    gateway = Gateway()
    async with RawInstance(welcome) as old, RawInstance(welcome) as new:
        gateway.links.update([member(old.port)])
        await until(lambda: len(gateway.ups) == 1, "the old link is up")
        gateway.links.update([member(new.port, "second")])
        await until(lambda: gateway.downs == ["the replica was restarted"], "the old link is closed")
        gateway.links.update([member(new.port, "second")])
        await until(lambda: len(gateway.ups) == 2, "the new link is up")
        assert gateway.links.up()[0].incarnation == "second"
        gateway.links.close()


async def test_a_link_that_ends_right_after_the_welcome_is_made_again() -> None:
    def welcome_and_leave(writer: asyncio.StreamWriter) -> None:
        welcome(writer)
        if instance.connections == 1:
            writer.close()

    gateway = Gateway()
    async with RawInstance(welcome_and_leave) as instance:

        def second_is_up() -> bool:
            gateway.links.update([member(instance.port)])
            return instance.connections == 2 and gateway.links.link(REPLICA) is not None

        await until(second_is_up, "the second attempt holds")
        gateway.links.close()


async def test_an_instance_that_is_not_there_is_tried_again_when_listed_again(caplog: pytest.LogCaptureFixture) -> None:
    gateway = Gateway()
    async with RawInstance(welcome) as gone:
        port = gone.port
    for warnings, listed in enumerate(([member(port)] * 3, [], [member(port)])):
        for one in [[each] for each in listed] or [[]]:
            gateway.links.update(one)
            await until(lambda: not gateway.links._connecting, "the attempt is over")
        logged = [record for record in caplog.records if "no link to" in record.message]
        assert len(logged) == (1, 1, 2)[warnings], "one line each time that it appears in the listing"
    assert (gateway.ups, gateway.downs) == ([], [])
    async with RawInstance(welcome) as there:
        gateway.links.update([member(there.port)])
        await until(lambda: len(gateway.ups) == 1, "the link is up")
        gateway.links.close()


async def left(gateway: Gateway) -> float:
    """Check for silence repeatedly, like a gateway, until it gives an instance up. Returns: after how long [s].

    Each pause of the machine restarts the whole limit, so the result is a lower bound.
    """
    begun = asyncio.get_running_loop().time()

    def is_left() -> bool:
        gateway.links.check_silence()
        return bool(gateway.downs)

    await until(is_left, "its silence is noticed")
    return asyncio.get_running_loop().time() - begun


@pytest.mark.real_time
async def test_a_silent_instance_is_left() -> None:
    gateway = Gateway(silence_s=0.4)
    async with RawInstance(welcome) as instance:
        gateway.links.update([member(instance.port)])
        await until(lambda: len(gateway.ups) == 1, "the link is up")
        assert await left(gateway) > 0.3, "it had just spoken"
        assert len(gateway.downs) == 1
        assert gateway.downs[0].startswith("silent for ")


@pytest.mark.real_time
async def test_a_gateway_that_was_asleep_does_not_blame_its_instances() -> None:
    gateway = Gateway(silence_s=0.4)
    async with RawInstance(welcome) as instance:
        gateway.links.update([member(instance.port)])
        await until(lambda: len(gateway.ups) == 1, "the link is up")
        gateway.links.check_silence()
        time.sleep(0.6)  # noqa: ASYNC251 - the whole process stands still, what was sent meanwhile lies unread
        gateway.links.check_silence()
        await asyncio.sleep(0)
        assert gateway.downs == []
        assert await left(gateway) > 0.3, "silence while the gateway was awake counts"


@pytest.mark.real_time
async def test_a_killed_process_is_noticed_at_once() -> None:
    gateway = Gateway()
    async with RawInstance(welcome) as instance:
        gateway.links.update([member(instance.port)])
        await until(lambda: len(gateway.ups) == 1, "the link is up")
        begun = asyncio.get_running_loop().time()
        instance.writers[0].transport.abort()  # what the kernel does for a process that was killed
        await until(lambda: len(gateway.downs) == 1, "the link is down")
        assert asyncio.get_running_loop().time() - begun < 1.5, "long before its silence would tell"


async def test_what_a_crashed_engine_was_sent_counts_as_there_when_it_crashed() -> None:
    gateway = Gateway()
    async with RawInstance(welcome) as instance:
        gateway.links.update([member(instance.port)])
        await until(lambda: len(gateway.ups) == 1, "the link is up")
        link = gateway.ups[0]
        assert link.send(Add(SequenceSpec(SequenceId("s@1"), (1,), SamplingParams())))
        instance.writers[0].write(m.encode(replace(STATUS, progress_age_s=CRASHED_AGE_S, step_limit_s=2.5)))
        await until(lambda: link.hangs, "it is told")
        gateway.links.check_silence()
        await until(lambda: gateway.downs == ["its engine has crashed"], "its sequences are told")
        assert link.still_since is None


async def test_an_engine_that_hangs_is_left_and_nothing_is_sent_there_before_it_moves() -> None:
    gateway = Gateway()
    hanging = replace(STATUS, progress_age_s=2.6, step_limit_s=2.5)
    async with RawInstance(welcome) as instance:
        gateway.links.update([member(instance.port)])
        await until(lambda: len(gateway.ups) == 1, "the link is up")
        assert gateway.links.up()[0].send(Add(SequenceSpec(SequenceId("s@1"), (1,), SamplingParams())))
        instance.writers[0].write(m.encode(hanging))
        await until(lambda: gateway.links.link(REPLICA) is None, "nobody is routed there")
        gateway.links.check_silence()
        await until(lambda: gateway.downs == ["its engine has been at one step for 2.6 s"], "its sequences are told")
        gateway.links.update([member(instance.port)])
        await until(lambda: len(gateway.ups) == 2, "its shell answers")
        instance.writers[1].write(m.encode(hanging))
        await until(lambda: gateway.links.link(REPLICA) is None, "it still hangs")
        gateway.links.check_silence()
        assert len(gateway.downs) == 1, "a link that nobody used may stay"
        instance.writers[1].write(m.encode(replace(STATUS, progress_age_s=0.1, step_limit_s=2.5)))
        await until(lambda: gateway.links.link(REPLICA) is not None, "it moves again")
        gateway.links.close()


def told(gateway: Gateway, status: Status) -> bool:
    """Whether this is the instance's last report."""
    return gateway.ups[0].status == status


async def test_a_long_step_within_its_limit_is_no_hang() -> None:
    gateway = Gateway()
    async with RawInstance(welcome) as instance:
        gateway.links.update([member(instance.port)])
        await until(lambda: len(gateway.ups) == 1, "the link is up")
        for status in (
            replace(STATUS, progress_age_s=30.0, step_limit_s=60.0),
            replace(STATUS, progress_age_s=30.0, step_limit_s=0.0),  # no limit is known
        ):
            instance.writers[0].write(m.encode(status))
            await until(partial(told, gateway, status), "it is told")
            assert gateway.links.link(REPLICA) is not None
        gateway.links.close()


async def test_closing_ends_attempts_under_way() -> None:
    gateway = Gateway()
    async with RawInstance(lambda writer: None) as mute:
        gateway.links.update([member(mute.port)])
        await until(lambda: mute.connections == 1, "it has connected")
        gateway.links.close()
        await until(lambda: not gateway.links._connecting, "nobody waits for the welcome any more")
        assert (gateway.ups, gateway.downs) == ([], [])


async def test_closing_leaves_no_connection_behind_that_nobody_owns() -> None:
    """An attempt in progress kept its socket: the instance kept counting a gateway that had ended."""
    gateway = Gateway()
    came, gone = asyncio.Event(), asyncio.Event()

    class Listening(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            came.set()

        def connection_lost(self, exc: Exception | None) -> None:
            gone.set()

    async with await asyncio.get_running_loop().create_server(Listening, "127.0.0.1", 0) as server:
        gateway.links.update([member(server.sockets[0].getsockname()[1])])
        await until(came.is_set, "it has connected, and waits for the welcome")
        assert not gone.is_set()
        gateway.links.close()
        await until(gone.is_set, "it has hung up")
        assert gateway.ups == []


async def connect(port: int) -> InstanceLink:
    def never_up(*_: object) -> None:
        pytest.fail("was never up")

    link = InstanceLink(ReplicaId("decode#1"), "first", lambda *_: None, lambda *_: None, never_up)
    await link.connect("127.0.0.1", port, GatewayId("gateway"), SECRET)
    return link


async def test_no_link_to_an_instance_that_refuses() -> None:
    async with RawInstance(lambda writer: writer.close()) as instance:
        with pytest.raises(LinkError, match=r"no link to decode#1 .*(closed by the peer|reset)"):
            await connect(instance.port)


async def test_no_link_without_an_answer_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_links, "CONNECT_DEADLINE_S", 0.1)
    async with RawInstance(lambda writer: None) as instance:
        with pytest.raises(LinkError, match="no answer in time"):
            await connect(instance.port)


async def test_nothing_can_be_sent_before_a_link_is_up() -> None:
    link = InstanceLink(ReplicaId("decode#1"), "first", lambda *_: None, lambda *_: None, lambda *_: None)
    assert not link.up
    assert not link.send(Release("ticket"))
    link.close("never was")
